"""Reads a request's body under the rules of HTTP: media type and size. Never looks inside."""

from starlette.requests import Request

from schemas.errors import ApiError
from schemas.refusals import unsupported_media_type


async def read_json_body(request: Request, max_bytes: int) -> bytes:
    """The body unparsed. ApiError 400 for another media type and 413 for one too large.

    Raise Starlette's ClientDisconnect where the client leaves before it is there.
    """
    _require_json(request.headers.get("content-type"))
    return await read_body(request, max_bytes)


async def read_body(request: Request, max_bytes: int) -> bytes:
    """As `read_json_body`, whatever the media type."""
    _require_size(_announced_size(request), max_bytes)
    chunks: list[bytes] = []
    size = 0
    async for chunk in request.stream():
        size += len(chunk)
        _require_size(size, max_bytes)
        chunks.append(chunk)
    return b"".join(chunks)


async def until_disconnect(request: Request) -> None:
    """Return when the client of a request whose body is read has gone."""
    while (await request.receive())["type"] != "http.disconnect":
        pass


def _require_json(content_type: str | None) -> None:
    media_type = (content_type or "").partition(";")[0].strip().lower()
    if media_type != "application/json":
        raise unsupported_media_type()


def _announced_size(request: Request) -> int:
    announced = request.headers.get("content-length", "")
    return int(announced) if announced.isdecimal() else 0


def _require_size(size: int, max_bytes: int) -> None:
    if size > max_bytes:
        raise ApiError(
            f"The request body is larger than the {max_bytes} bytes this server accepts.",
            status=413,
            type="RequestEntityTooLarge",
        )
