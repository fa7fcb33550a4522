"""Checks on a body as decoded, before its fields are looked at: what no single field can tell.

Each takes the whole object and raises the ApiError of vLLM (01-render §3.3). Knows no endpoint.
"""

from collections.abc import Iterable
from typing import Any

from pydantic import TypeAdapter, ValidationError

from schemas.errors import ApiError
from schemas.fields import LegacyStructuralTagFormat, StructuralTagFormat
from schemas.refusals import bad_request

_MAX_CACHE_SALT = 128
_MAX_JSON_NESTING = 64
"""Nested objects and arrays of a JSON schema; building a grammar from more is a way to stall us."""
_TAG_NESTING = 16
"""Levels that a structural tag wraps around its schemas."""


def check_cache_salt(salt: object) -> None:
    if salt is None:
        return
    if not isinstance(salt, str) or not salt:
        raise bad_request(
            "Parameter 'cache_salt' must be a non-empty string if provided.", "cache_salt"
        )
    if len(salt) > _MAX_CACHE_SALT or not set(salt).isdisjoint("@/\\\0"):
        raise bad_request(
            "Parameter 'cache_salt' must be at most 128 characters and must "
            "not contain '@', '/', '\\\\', or NUL.",
            "cache_salt",
        )


def with_mm_payload(body: dict[str, Any]) -> dict[str, Any]:
    """The deprecated `return_mm_kwargs: false` means `mm_payload: none` where that is absent."""
    if body.get("return_mm_kwargs") is False and "mm_payload" not in body:
        return {**body, "mm_payload": "none"}
    return body


def check_stream_options(body: dict[str, Any]) -> None:
    if body.get("stream_options") and not body.get("stream"):
        raise bad_request(
            "Stream options can only be defined when `stream=True`.", "stream_options"
        )


def check_response_format(body: dict[str, Any]) -> None:
    wanted = body.get("response_format")
    if not isinstance(wanted, dict):
        return
    if wanted.get("type") == "json_schema" and wanted.get("json_schema") is None:
        raise bad_request(
            "When response_format type is 'json_schema', the 'json_schema' field must be provided.",
            "response_format",
        )
    if wanted.get("type") == "structural_tag":
        _check_tag_format(wanted)


def _check_tag_format(wanted: dict[str, Any]) -> None:
    try:
        TypeAdapter(LegacyStructuralTagFormat | StructuralTagFormat).validate_python(wanted)
    except ValidationError:
        raise _bad_tag() from None
    if "format" in wanted and not _is_typed(wanted["format"]):
        raise _bad_tag()
    check_nesting(wanted, _MAX_JSON_NESTING + _TAG_NESTING)


def _is_typed(tag: object) -> bool:
    return isinstance(tag, dict) and isinstance(tag.get("type"), str)


def _bad_tag() -> ApiError:
    return bad_request("Invalid response_format structural_tag specification.", "response_format")


def check_structured_outputs(body: dict[str, Any], parameter: str | None) -> None:
    """At most one of the kinds OpenAI-like bodies may give; `parameter` differs by endpoint."""
    wanted = body.get("structured_outputs")
    if not isinstance(wanted, dict):
        return
    count = sum(wanted.get(kind) is not None for kind in ("json", "regex", "choice"))
    if count > 1:
        raise bad_request(
            "You can only use one kind of constraints for structured "
            "outputs ('json', 'regex' or 'choice').",
            parameter,
        )


def check_nesting(spec: object, limit: int = _MAX_JSON_NESTING) -> None:
    """Refuse a schema whose containers nest deeper than the limit."""
    if nesting_exceeds(spec, limit):
        raise bad_request(
            "The JSON schema is nested too deeply: objects and arrays may nest at "
            f"most {_MAX_JSON_NESTING} levels"
        )


def nesting_exceeds(value: object, limit: int) -> bool:
    """Whether containers in a decoded JSON value nest deeper than the limit."""
    level: list[object] = [value]
    for _ in range(limit):
        level = [child for node in level for child in _containers(node)]
        if not level:
            return False
    return True


def _containers(node: object) -> list[object]:
    children: Iterable[object] = ()
    if isinstance(node, dict):
        children = node.values()
    elif isinstance(node, list):
        children = node
    return [child for child in children if isinstance(child, dict | list)]


def check_counts(body: dict[str, Any], names: tuple[str, ...]) -> None:
    """Logprob counts are compared before their types are checked, so the type comes first."""
    for name in names:
        value = body.get(name)
        if value is not None and not isinstance(value, int | float):
            raise bad_request(f"`{name}` must be an integer.", name, value)


def check_prompt_logprobs(body: dict[str, Any]) -> None:
    count = body.get("prompt_logprobs")
    if count is None:
        return
    if body.get("stream") and (count > 0 or count == -1):
        raise bad_request(
            "`prompt_logprobs` are not available when `stream=True`.", "prompt_logprobs"
        )
    check_positive("prompt_logprobs", count)


def check_positive(name: str, count: float | None) -> None:
    if count is not None and count < 0 and count != -1:
        raise bad_request(f"`{name}` must be a positive value or -1.", name, count)
