"""What a user can do something about when a process does not start, in words."""

from runtime.errors import SettingsError

# What an installation without the extra of a role lacks.
_EXTRA_OF = {
    "PIL": "render", "av": "render", "aiohttp": "render", "numpy": "render", "torch": "engine",
    "transformers": "engine", "safetensors": "engine", "fastapi": "ingress", "uvicorn": "ingress",
}  # fmt: skip


def reason_of(error: SettingsError | ModuleNotFoundError) -> str | None:
    """None: it is a fault of ours."""
    if isinstance(error, SettingsError):
        return str(error)
    extra = _EXTRA_OF.get((error.name or "").split(".")[0])
    return f"{error.name} is not installed: pip install 'tokenfleet[{extra}]'" if extra else None
