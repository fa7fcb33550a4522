"""Where the model that ships with the project is."""

from pathlib import Path

from runtime.errors import SettingsError

_ROOT = Path(__file__).resolve().parent.parent


def demo_model() -> Path:
    """Directory of the demo model. Raise SettingsError where only the code is installed."""
    path = _ROOT / "models" / "shapes-vl"
    if not path.is_dir():
        raise SettingsError(
            "give MODEL, the path of a model directory: the demo model is not installed here"
        )
    return path


def examples() -> Path:
    """Directory of the pictures that the demo asks about."""
    return _ROOT / "examples"
