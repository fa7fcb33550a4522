"""Builders for the error bodies that refuse a request, worded as clients of vLLM know them.

Knows the envelope of 01-render §1 and no request model.
"""

import re
from typing import Any

from schemas.errors import ApiError

_ADDRESS = re.compile(r" at 0x[0-9a-fA-F]+>")
_PATH = re.compile(
    r"/(?:home|usr|opt|var|tmp|root|lib|mnt|srv)(?:/[\w.\-]+)+|(?:/[\w\-]+)+/[\w\-]+\.\w+"
)

_MAX_TOLD = 2_000


# All that a path is made of: nothing else of a message has to be looked at.
_PATH_CHARACTERS = re.compile(r"[\w\-./]++")
_MAX_PATH = 1024


def bad_request(message: str, parameter: str | None = None, value: object = None) -> ApiError:
    """A domain error: 400 `BadRequestError`, the parameter repeated in the message's tail."""
    told = [f"parameter={parameter}"] if parameter is not None else []
    told += [f"value={cut(str(value))}"] if value is not None else []
    message = cut(message)
    text = f"{message} ({', '.join(told)})" if told else message
    return ApiError(sanitized(text), param=parameter)


def schema_error(message: str, param: str | None) -> ApiError:
    """A body that does not have the shape of its endpoint: 400 `Bad Request`."""
    return ApiError(sanitized(message), type="Bad Request", param=param)


def unsupported_media_type() -> ApiError:
    """For a body that is not declared to be JSON; the check itself is the ingress's."""
    return schema_error(
        "1 validation error:\n  Unsupported Media Type: Only 'application/json' is allowed", None
    )


UNSUPPORTED_MEDIA_TYPE = unsupported_media_type


def not_implemented(message: str) -> ApiError:
    """Something this version leaves out on purpose."""
    return ApiError(message, status=501, type="NotImplementedError")


class UnreadableBody(ApiError):
    """Bytes no JSON decoder takes as text; the one refusal whose body is not the envelope."""

    def __init__(self) -> None:
        super().__init__("There was an error parsing the body", type="Bad Request", param="body")

    def body(self) -> dict[str, Any]:
        return {"detail": self.message}


def cut(text: str) -> str:
    """What a caller wrote may be repeated to it, but not megabytes of it."""
    return text if len(text) <= _MAX_TOLD else text[:_MAX_TOLD] + "...[truncated]"


def sanitized(message: str) -> str:
    """Without object addresses and absolute paths, which tell about the machine."""
    return _PATH_CHARACTERS.sub(_without_path, _ADDRESS.sub(">", message)).strip()


def _without_path(found: re.Match[str]) -> str:
    """Looking for paths takes time that grows with the square of the length."""
    text = found[0]
    return text if len(text) > _MAX_PATH else _PATH.sub("<path>", text)
