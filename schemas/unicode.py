"""Finds text that is no Unicode: lone surrogates, which JSON can spell and UTF-8 cannot.

RFC 8259 §8.2 leaves them to the reader; here they are refused once, for the whole body.
"""

import re

from schemas.errors import ApiError
from schemas.refusals import bad_request

_SURROGATE = re.compile("[\ud800-\udfff]")
_PROMPT = frozenset({"messages", "prompt", "input", "system", "instructions"})
"""Text that becomes the prompt: refusals name no parameter there, as vLLM's do not."""


def check_unicode(body: object) -> None:
    """Raise ApiError 400 for the first lone surrogate in a decoded body, keys included."""
    path = _path_to_surrogate(body)
    if path is None:
        return
    name = ".".join(path)[:200] or "body"
    message = f"`{name}` holds characters that are no valid Unicode (lone surrogates)."
    raise (ApiError(message) if path and path[0] in _PROMPT else bad_request(message, name))


def _path_to_surrogate(body: object) -> tuple[str, ...] | None:
    pending: list[tuple[tuple[str, ...], object]] = [((), body)]
    while pending:
        path, value = pending.pop()
        if isinstance(value, str):
            if _SURROGATE.search(value):
                return path
        elif isinstance(value, dict):
            for key, child in value.items():
                if _SURROGATE.search(key):
                    return (*path, key.encode("ascii", "backslashreplace").decode()[:100])
                pending.append(((*path, key), child))
        elif isinstance(value, list):
            pending += [((*path, str(i)), child) for i, child in enumerate(value)]
    return None
