"""The encode stage: runs the vision tower and publishes embeddings to the encoder cache."""
