"""Builds the demo model: pictures, questions, batches, network and evaluation of shapes-vl."""
