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
    ValidationInfo,
    model_serializer,
    model_validator,
)
from pydantic_core import PydanticKnownError

from schemas.limits import PERMISSIVE, ModelLimits
from schemas.refusals import bad_request

INT64_MIN, INT64_MAX = -(2**63), 2**63 - 1

Int64: TypeAlias = Annotated[int, Field(ge=INT64_MIN, le=INT64_MAX)]
TokenId: TypeAlias = Annotated[int, Field(ge=0)]
ReasoningEffort: TypeAlias = Literal["none", "minimal", "low", "medium", "high", "xhigh", "max"]
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
