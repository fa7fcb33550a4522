"""Derender: token ids become text, messages and OpenAI answers. Runs no model."""
