"""Which names may become part of a path or an object key. Data in, data out."""

import re

from runtime.errors import StoreRefused

_SEGMENT = re.compile(r"[A-Za-z0-9_:=+@-][A-Za-z0-9_:=+@.-]{0,199}")
_MAX_NAME = 800


def is_plain(name: str) -> bool:
    """One path segment that means nothing to a file system: no separators, no leading dot."""
    return _SEGMENT.fullmatch(name) is not None


def require_plain(name: str) -> str:
    """The name itself. StoreRefused where it is not one plain segment."""
    if not is_plain(name):
        raise StoreRefused(f"not a plain name: {name[:80]!r}")
    return name


def require_path(name: str) -> str:
    """Plain segments joined by slashes."""
    if len(name) > _MAX_NAME or not all(is_plain(part) for part in name.split("/")):
        raise StoreRefused(f"not a plain path: {name[:80]!r}")
    return name
