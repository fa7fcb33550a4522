"""Fixtures for every test."""

import uuid

import pytest


@pytest.fixture
def topic_prefix() -> str:
    """A fresh prefix: tests share one broker and never see each other's topics."""
    return f"t{uuid.uuid4().hex[:10]}."
