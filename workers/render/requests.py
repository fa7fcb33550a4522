"""A chat request of any endpoint as the renderer takes it. Decides nothing about its content."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from schemas.chat import ChatCompletionRequest
from schemas.fields import NamedToolChoice
from schemas.limits import ModelLimits
from schemas.parts import has_media
from schemas.refusals import bad_request
from workers.render.prompts import PromptRules
from workers.render.sampling import AnyRequest, structured_outputs
from workers.render.templating import TemplateInput, Templates
from workers.text.tools import ToolWishes


@dataclass(frozen=True, slots=True)
class ChatInput:
    request: AnyRequest
    """Where sampling parameters come from."""
    messages: Sequence[dict[str, Any]]
    template: TemplateInput
    rules: PromptRules
    max_tokens: int | None
    """Asked for."""
    tools: Callable[[], ToolWishes]
    """Raises ApiError for constraints that contradict each other: after the prompt's own errors."""
    mm_processor_kwargs: Mapping[str, Any] | None = None
    media_io_kwargs: Mapping[str, Any] | None = None
    has_openai_messages: bool = False
    """Their parts are still to be checked against OpenAI's forms."""
    reused_ids: Sequence[int] | None = None
    """Token ids that stand for the rendered messages."""


def chat_input(
    request: ChatCompletionRequest,
    templates: Templates,
    limits: ModelLimits,
    *,
    hides_unused_tools: bool,
) -> ChatInput:
    """`hides_unused_tools`: tools that must not be called are not shown to the template either."""
    tools = [tool.model_dump() for tool in request.tools or ()] or None
    shown = None if hides_unused_tools and request.tool_choice == "none" else tools
    kwargs = templates.effective_kwargs(
        request.chat_template_kwargs,
        {
            "add_generation_prompt": request.add_generation_prompt,
            "continue_final_message": request.continue_final_message,
            "documents": request.documents,
            "reasoning_effort": request.reasoning_effort,
        },
    )
    template_tokenizes = bool(kwargs.get("tokenize"))  # and tells of no offsets
    named = request.max_completion_tokens is not None
    asked = request.max_completion_tokens if named else request.max_tokens
    return ChatInput(
        request=request,
        messages=request.messages,
        has_openai_messages=True,
        template=TemplateInput(
            kwargs, shown, request.chat_template, bool(kwargs.get("continue_final_message"))
        ),
        rules=PromptRules(
            max_model_len=limits.max_model_len,
            max_output_tokens=asked,
            output_param="max_completion_tokens" if named else "max_tokens",
            add_special_tokens=request.add_special_tokens and not template_tokenizes,
            truncate_to=request.truncate_prompt_tokens,
            side=request.truncation_side,
            want_offsets=bool(request.return_token_offsets) and not template_tokenizes,
        ),
        max_tokens=asked,
        tools=partial(chat_tools, request),
        mm_processor_kwargs=request.mm_processor_kwargs,
        media_io_kwargs=request.media_io_kwargs,
        reused_ids=None
        if request.echo
        else reused_ids(request.kv_transfer_params, request.messages, limits),
    )


def chat_tools(request: ChatCompletionRequest) -> ToolWishes:
    choice = request.tool_choice
    return ToolWishes(
        functions=[tool.function.model_dump() for tool in request.tools or ()],
        choice=None if isinstance(choice, NamedToolChoice) else choice,
        forced=choice.function.name if isinstance(choice, NamedToolChoice) else None,
        is_parallel=request.parallel_tool_calls is not False,
        structured_outputs=structured_outputs(request.structured_outputs, request.response_format),
        is_constrained=request.structured_outputs is not None
        or getattr(request.response_format, "type", None) == "structural_tag",
        skip_special_tokens=request.skip_special_tokens,
    )


def reused_ids(
    transfer: Mapping[str, Any] | None, messages: Sequence[Mapping[str, Any]], limits: ModelLimits
) -> list[int] | None:
    """Ids forwarded by an earlier stage, which stand for template and tokenization (01 §4.7)."""
    ids = (transfer or {}).get("prompt_token_ids")
    if ids is None or has_media(messages):
        return None
    name = "kv_transfer_params.prompt_token_ids"
    if not isinstance(ids, list) or not ids or not all(type(i) is int and i >= 0 for i in ids):
        raise bad_request(
            "`kv_transfer_params['prompt_token_ids']` must be a non-empty list of non-negative"
            " integers.",
            name,
        )
    if max(ids) >= limits.vocab_size:
        raise bad_request(f"Token id {max(ids)} is out of vocabulary.", name)
    return ids
