"""Which parts of an installation a role needs, and which of them are missing here."""

from collections.abc import Set
from importlib.util import find_spec

from runtime.errors import SettingsError
from tokenfleet.plan import ENGINES, Role

# What each extra of pyproject.toml brings; the coordinator and the derender worker need none.
_MODULES = {
    "ingress": ("fastapi", "uvicorn", "httptools"),
    "render": ("aiohttp", "av", "numpy", "PIL", "torch"),
    "engine": ("numpy", "safetensors", "torch", "transformers", "xgrammar"),
}


def require_extras(command: str, roles: Set[Role], *, takes_media: bool) -> None:
    """SettingsError in one line where something is missing, rather than at the first request.

    `takes_media`: a text-only model is rendered without libraries for pictures.
    """
    needed = needed_extras(roles, takes_media=takes_media)
    missing = [extra for extra in needed if not all(map(find_spec, _MODULES[extra]))]
    if missing:
        raise SettingsError(missing_extras(command, missing))


def needed_extras(roles: Set[Role], *, takes_media: bool) -> list[str]:
    needed = {
        "ingress": Role.INGRESS in roles,
        "render": Role.RENDER in roles and takes_media,
        "engine": bool(ENGINES & roles),
    }
    return [extra for extra, is_needed in needed.items() if is_needed]


def missing_extras(command: str, missing: list[str]) -> str:
    extras = "the extra" if len(missing) == 1 else "the extras"
    return f"{command} needs {extras}: pip install 'tokenfleet[{','.join(missing)}]'"
