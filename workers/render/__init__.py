"""Render: requests become token ids, sampling parameters and media items. Runs no model."""
