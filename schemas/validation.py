"""From the bytes of a body to a validated request, or to the error body that refuses it (01 §1).

Knows which model belongs to which kind; decides nothing that a deployment's tokenizer or engine
must decide.
"""

import json
import re
from collections.abc import Callable
from functools import partial
from typing import Any

from pydantic import BaseModel, TypeAdapter, ValidationError
from pydantic_core import from_json

from schemas.anthropic import MessagesRequest
from schemas.body_checks import nesting_exceeds
from schemas.body_limits import check_limits
from schemas.chat import ChatCompletionRequest
from schemas.completion import CompletionRequest
from schemas.derender import (
    AnyDerenderChat,
    AnyDerenderCompletion,
    DerenderChatRequest,
    DerenderChatStreamRequest,
    DerenderCompletionRequest,
    DerenderCompletionStreamRequest,
)
from schemas.errors import ApiError
from schemas.fail_fast import Schema, fail_fast, validator_of
from schemas.generate import GenerateBody
from schemas.json_size import is_light, num_values
from schemas.limits import MAX_NESTING, MAX_VALUES, ModelLimits
from schemas.openai_responses import ResponsesRequest
from schemas.refusals import UNSUPPORTED_MEDIA_TYPE, UnreadableBody, bad_request, schema_error
from schemas.routes import Kind
from schemas.tokenize import DetokenizeRequest, TokenizeRequest
from schemas.unicode import check_unicode

__all__ = ["UNSUPPORTED_MEDIA_TYPE", "api_error", "bad_request", "decode_json", "parse_body"]

_MAX_ERRORS = 10
_MAX_INPUT = 200
_MAX_ERROR = 1000

_MODELS: dict[Kind, type[BaseModel]] = {
    Kind.CHAT: ChatCompletionRequest,
    Kind.CHAT_RENDER: ChatCompletionRequest,
    Kind.COMPLETION: CompletionRequest,
    Kind.COMPLETION_RENDER: CompletionRequest,
    Kind.RESPONSES_RENDER: ResponsesRequest,
    Kind.MESSAGES_RENDER: MessagesRequest,
    Kind.GENERATE: GenerateBody,
    Kind.DETOKENIZE: DetokenizeRequest,
}
_BY_STREAM: dict[Kind, tuple[type[BaseModel], type[BaseModel]]] = {
    Kind.CHAT_DERENDER: (DerenderChatRequest, DerenderChatStreamRequest),
    Kind.COMPLETION_DERENDER: (DerenderCompletionRequest, DerenderCompletionStreamRequest),
}
"""The whole and the streaming form."""
_UNIONS: dict[Kind, TypeAdapter[Any]] = {
    Kind.CHAT_DERENDER: TypeAdapter(AnyDerenderChat),
    Kind.COMPLETION_DERENDER: TypeAdapter(AnyDerenderCompletion),
    Kind.TOKENIZE: TypeAdapter(TokenizeRequest),
}


def decode_json(raw: bytes) -> object:
    """The JSON value of a body, as lenient as vLLM's: NaN, Infinity and repeated keys pass.

    ApiError 400 for bytes that are no JSON, for more values than a body may have, and for text that
    is no Unicode.
    """
    if not is_light(raw):
        raw = _require_values(raw)
    try:
        value: object = from_json(raw)
    except ValueError:
        value = _decode_slowly(raw)
        check_unicode(value)
    if _may_nest_deeply(raw) and nesting_exceeds(value, MAX_NESTING):
        raise UnreadableBody
    return value


def _require_values(raw: bytes) -> bytes:
    """The body in UTF-8, in which values can be counted."""
    encoding = json.detect_encoding(raw)
    if not encoding.startswith("utf-8"):
        try:
            raw = raw.decode(encoding, "surrogatepass").encode("utf-8", "surrogatepass")
        except UnicodeDecodeError:
            raise UnreadableBody from None
    try:
        count = num_values(raw, MAX_VALUES)
    except ValueError as error:
        raise bad_request(f"The body holds {error}.") from None
    if count > MAX_VALUES:
        raise bad_request(f"The body has more than {MAX_VALUES} JSON values.")
    return raw


def _decode_slowly(raw: bytes) -> object:
    """What the fast parser refuses: other encodings, lone surrogates, and errors to be told."""
    try:
        value: object = json.loads(raw)
    except json.JSONDecodeError as error:
        raise _invalid_json(error) from None
    except (ValueError, RecursionError):
        raise UnreadableBody from None
    return value


def _may_nest_deeply(raw: bytes) -> bool:
    return any(_occurs_often(raw, mark) for mark in (b"[", b"{"))


def _occurs_often(raw: bytes, mark: bytes) -> bool:
    """Unlike `count`, `find` passes over megabytes of base64 as fast as memory is read."""
    position = -1
    for _ in range(MAX_NESTING // 2):
        position = raw.find(mark, position + 1)
        if position < 0:
            return False
    return True


def parse_body(kind: Kind, raw: bytes, limits: ModelLimits) -> BaseModel:
    """The validated request of an endpoint. Raise ApiError for everything its schema refuses."""
    body = decode_json(raw) if raw else None
    if body is None:
        raise _refusal([{"type": "missing", "loc": (), "msg": "Field required", "input": None}])
    return validated(kind, body, limits, is_light=is_light(raw))


def validated(kind: Kind, body: object, limits: ModelLimits, *, is_light: bool = True) -> BaseModel:
    """As `parse_body`, for a body that is decoded already. May change its nested objects.

    Of one that is not light a list's first bad entry is told, and no other.
    """
    if isinstance(body, dict):
        check_limits(body, is_light=is_light)
    validate = partial(_validate, body, {"limits": limits}, is_light)
    try:
        if kind in _BY_STREAM:
            return _validated_by_stream(kind, body, validate)
        return validate(_UNIONS[kind] if kind in _UNIONS else _MODELS[kind])
    except ValidationError as error:
        raise api_error(error) from None


def _validate(body: object, context: dict[str, Any], is_light: bool, schema: Schema) -> BaseModel:
    validator = validator_of(schema) if is_light else fail_fast(schema)
    request: BaseModel = validator.validate_python(body, context=context, from_attributes=True)
    return request


def _validated_by_stream(
    kind: Kind, body: object, validate: Callable[[Schema], BaseModel]
) -> BaseModel:
    """The form that `stream` names; errors are those of both forms, as of any union."""
    stream = body.get("stream", False) if isinstance(body, dict) else False
    try:
        return validate(_BY_STREAM[kind][1 if stream is True else 0])
    except ValidationError:
        return validate(_UNIONS[kind])


def api_error(error: ValidationError) -> ApiError:
    """The refusal for a schema's errors, at most ten of them spelled out."""
    return _refusal([dict(e) for e in error.errors(include_url=False)])


def _invalid_json(error: json.JSONDecodeError) -> ApiError:
    return _refusal(
        [
            {
                "type": "json_invalid",
                "loc": (error.pos,),
                "msg": "JSON decode error",
                "input": {},
                "ctx": {"error": error.msg},
            }
        ]
    )


def _refusal(errors: list[dict[str, Any]]) -> ApiError:
    label = "error" if len(errors) == 1 else "errors"
    lines = [f"{len(errors)} validation {label}:"]
    lines += [f"  {_told(e)}" for e in errors[:_MAX_ERRORS]]
    if len(errors) > _MAX_ERRORS:
        lines.append(f"  ...and {len(errors) - _MAX_ERRORS} more {label}")
    return schema_error("\n".join(lines), _dotted(errors[0]["loc"]))


def _told(error: dict[str, Any]) -> str:
    text = str({**error, "loc": _dotted(error["loc"]), "input": _summary(error["input"])})
    return _cut(text, _MAX_ERROR)


def _summary(value: object) -> object:
    """Bounded: one value may be repeated in thousands of errors."""
    if isinstance(value, bytes | bytearray):
        return f"<{type(value).__name__} of {len(value)} bytes>"
    if isinstance(value, list | tuple | set | frozenset | dict):
        return f"<{type(value).__name__} of {len(value)} items>"
    try:
        return _cut(str(value), _MAX_INPUT)
    except ValueError:  # an integer of more digits than Python prints
        return f"<{type(value).__name__}>"


def _cut(text: str, limit: int) -> str:
    return text if len(text) <= limit else text[:limit] + "...[truncated]"


_BRACKETS = re.compile(r"[\[\]{}()]")
_UNION_MARKS = frozenset(
    {"str", "int", "float", "bool", "bytes", "list", "tuple", "dict", "set", "none", "nullable"}
    | {"is-instance", "union", "tagged-union", "default", "chain", "lax-or-strict"}
    | {"arguments", "call", "callable", "is-subclass", "bytearray", "frozenset", "complex"}
    | {"function-wrap", "function-after", "function-before", "function-plain", "json-or-python"}
    | {"responseformat", "structuraltagformat", "legacystructuraltagformat", "namedtoolchoice"}
    | {"tokenizecompletionrequest", "tokenizechatrequest"}
)
"""How branches of unions are named in a location, where clients do not see them."""


def _dotted(loc: tuple[str | int, ...]) -> str:
    parts = ["body", *map(str, loc)]
    kept = (p for p in parts if len(p) > _MAX_INPUT or not _BRACKETS.search(p))
    return _cut(
        ".".join(_cut(p, _MAX_INPUT) for p in kept if p.lower() not in _UNION_MARKS), _MAX_ERROR
    )
