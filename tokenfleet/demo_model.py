"""The model and the pictures that ship with the project.

In a checkout `tokenfleet/data/` links to `models/` and `examples/`; a wheel has their files there.
"""

from pathlib import Path

DEMO_NAME = "shapes-vl"
_DATA = Path(__file__).parent / "data"


def demo_model() -> Path:
    """Directory of the demo model."""
    return (_DATA / DEMO_NAME).resolve()


def is_demo_model(model: str) -> bool:
    """Whether a model argument names it, in whichever way."""
    return Path(model).expanduser().resolve() == demo_model()


def examples() -> Path:
    """Directory of the pictures that the demo asks about."""
    return (_DATA / "examples").resolve()
