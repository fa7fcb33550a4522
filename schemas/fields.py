"""Pieces that several request bodies share: option objects, tools, and the checks common to them.

Knows the wire of 01-render §3 and no endpoint.
"""

from collections.abc import Iterable
from typing import Annotated, Any, Literal, TypeAlias

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    SerializerFunctionWrapHandler,
    TypeAdapter,
    ValidationError,
    ValidationInfo,
    model_serializer,
    model_validator,
)
from pydantic_core import PydanticKnownError

from schemas.errors import ApiError
from schemas.limits import PERMISSIVE, ModelLimits
from schemas.refusals import bad_request

INT64_MIN, INT64_MAX = -(2**63), 2**63 - 1
_MAX_CACHE_SALT = 128
_MAX_JSON_NESTING = 64
"""Nested objects and arrays of a JSON schema; building a grammar from more is a way to stall us."""
_TAG_NESTING = 16
"""Levels that a structural tag wraps around its schemas."""

Int64: TypeAlias = Annotated[int, Field(ge=INT64_MIN, le=INT64_MAX)]
TokenId: TypeAlias = Annotated[int, Field(ge=0)]
TokenIds: TypeAlias = Annotated[list[int], Field(fail_fast=True)]
"""Long lists stop at their first bad entry."""
MMPayload: TypeAlias = Literal["tensors", "none"]
CacheSalt: TypeAlias = Annotated[str, Field(min_length=1, max_length=1024)]
Truncation: TypeAlias = Annotated[int, Field(ge=-1, le=INT64_MAX)]
ExtraArgs: TypeAlias = dict[str, str | int | float | list[str | int | float]]


class Body(BaseModel):
    """A JSON object of the wire; keys we do not know are ignored."""

    model_config = ConfigDict(extra="ignore", protected_namespaces=())


def limits_of(info: ValidationInfo) -> ModelLimits:
    """The limits that the caller of the validation put into its context."""
    limits: ModelLimits = (info.context or {}).get("limits", PERMISSIVE)
    return limits


def _check_stop_count(value: list[str], info: ValidationInfo) -> list[str]:
    limit = limits_of(info).max_stop_strings
    if len(value) > limit:
        raise PydanticKnownError(
            "too_long", {"field_type": "List", "max_length": limit, "actual_length": len(value)}
        )
    return value


StopList: TypeAlias = Annotated[list[str], AfterValidator(_check_stop_count)]
Stop: TypeAlias = str | StopList | None


def _zero_for_null(value: object) -> object:
    return 0 if value is None else value


TopLogprobs: TypeAlias = Annotated[int, BeforeValidator(_zero_for_null)]
"""Null means the same as leaving it out."""


def thinking_budget(value: object) -> object:
    """The budget, None for no bound."""
    if value is None or (type(value) is int and value >= 0):
        return value
    if type(value) is int and value == -1:
        return None
    raise bad_request(
        "`thinking_token_budget` must be a non-negative integer or -1 for unlimited.",
        "thinking_token_budget",
        value,
    )


ThinkingBudget: TypeAlias = Annotated[int | None, BeforeValidator(thinking_budget)]


class StreamOptions(Body):
    include_usage: bool | None = False
    continuous_usage_stats: bool | None = False


class JsonSchemaFormat(Body):
    name: str
    description: str | None = None
    json_schema: dict[str, Any] | None = Field(default=None, alias="schema")
    strict: bool | None = None


class ResponseFormat(Body):
    type: Literal["text", "json_object", "json_schema"]
    json_schema: JsonSchemaFormat | None = None


class StructuralTagFormat(Body):
    type: Literal["structural_tag"]
    format: Any


class LegacyStructure(Body):
    begin: str
    structural_tag_schema: dict[str, Any] | None = Field(default=None, alias="schema")
    end: str


class LegacyStructuralTagFormat(Body):
    type: Literal["structural_tag"]
    structures: list[LegacyStructure]
    triggers: list[str]


AnyResponseFormat: TypeAlias = ResponseFormat | StructuralTagFormat | LegacyStructuralTagFormat


class FunctionDefinition(Body):
    """`strict` and `defer_loading` appear in what a template sees only where they were given."""

    name: str
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None
    defer_loading: bool | None = None

    @model_serializer(mode="wrap")
    def _without_absent(self, handler: SerializerFunctionWrapHandler) -> dict[str, Any]:
        return _drop_nulls(handler(self), ("strict", "defer_loading"))


class Tool(Body):
    type: Literal["function"] = "function"
    function: FunctionDefinition
    defer_loading: bool | None = None

    @model_validator(mode="after")
    def _hand_down_defer_loading(self) -> "Tool":
        if self.defer_loading is not None and self.function.defer_loading is None:
            self.function.defer_loading = self.defer_loading
        return self

    @model_serializer(mode="wrap")
    def _without_absent(self, handler: SerializerFunctionWrapHandler) -> dict[str, Any]:
        return _drop_nulls(handler(self), ("defer_loading",))


def _drop_nulls(data: dict[str, Any], keys: Iterable[str]) -> dict[str, Any]:
    return {k: v for k, v in data.items() if v is not None or k not in set(keys)}


class NamedFunction(Body):
    name: str


class NamedToolChoice(Body):
    function: NamedFunction
    type: Literal["function"] = "function"


ToolChoice: TypeAlias = (
    Literal["none"] | Literal["auto"] | Literal["required"] | NamedToolChoice | None
)


class RepetitionDetection(Body):
    """End generation when the output's tail repeats itself."""

    max_pattern_size: int = 0
    min_pattern_size: int = 0
    min_count: int = 0

    @model_validator(mode="after")
    def _check(self) -> "RepetitionDetection":
        if not 0 <= self.min_pattern_size <= self.max_pattern_size:
            raise bad_request(
                "max_pattern_size, min_pattern_size must be >=0, with min_pattern_size <= "
                "max_pattern_size. Set both to 0 to disable repetitive pattern detection."
            )
        if self.max_pattern_size > 0 and self.min_count < 2:
            raise bad_request(
                "min_count must be >= 2 to detect repetitive patterns in engine output. If you do "
                "not wish to detect repetitive patterns, set max_pattern_size to 0."
            )
        return self


# Checks on the raw object, before its fields are looked at. Each takes the body as decoded.


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
