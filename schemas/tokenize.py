"""Bodies and answers of `/tokenize` and `/detokenize` (06-launch §3). Knows no tokenizer."""

from typing import Annotated, Any, TypeAlias

from pydantic import BaseModel, Field, model_validator

from schemas.chat import ChatCompletionRequest, Messages
from schemas.chat_checks import check_generation_prompt
from schemas.fields import INT64_MAX, Body, Tool


class TokenizeCompletionRequest(Body):
    model: str | None = None
    prompt: str
    add_special_tokens: bool = True
    return_token_strs: bool | None = False


class TokenizeChatRequest(Body):
    model: str | None = None
    messages: Messages
    add_generation_prompt: bool = True
    return_token_strs: bool | None = False
    continue_final_message: bool = False
    add_special_tokens: bool = False
    chat_template: str | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    media_io_kwargs: dict[str, dict[str, Any]] | None = None
    mm_processor_kwargs: dict[str, Any] | None = None
    tools: list[Tool] | None = None

    @model_validator(mode="before")
    @classmethod
    def _check_raw(cls, body: Any) -> Any:
        if isinstance(body, dict):
            check_generation_prompt(body)
        return body

    def to_chat_request(self) -> ChatCompletionRequest:
        """The chat request that renders alike. An empty tool list is none at all here."""
        data = self.model_dump(exclude={"return_token_strs"}, exclude_none=True)
        if not data.get("tools"):
            data.pop("tools", None)
        return ChatCompletionRequest.model_validate(data)


TokenizeRequest: TypeAlias = TokenizeCompletionRequest | TokenizeChatRequest


class TokenizeResponse(BaseModel):
    count: int
    max_model_len: int
    tokens: list[int]
    token_strs: list[str] | None = None
    """Vocabulary pieces."""


class DetokenizeRequest(Body):
    model: str | None = None
    tokens: Annotated[list[Annotated[int, Field(ge=0, le=INT64_MAX)]], Field(fail_fast=True)]


class DetokenizeResponse(BaseModel):
    prompt: str
