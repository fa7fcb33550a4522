"""What travels between stages beside the envelope, one file a receiver."""
