"""The prefill stage: loads embeddings, runs the language model, and answers with token ids."""
