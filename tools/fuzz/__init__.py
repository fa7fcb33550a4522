"""A fuzz of two render servers against each other; knows both only over HTTP."""
