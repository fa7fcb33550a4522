"""One model's rendering: everything between a validated request and its answer, but for the media.

All calls are plain computation, safe to make from several threads at once.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from runtime.model_dir import ModelDirectory
from runtime.settings import ModelSettings, RenderSettings
from schemas.anthropic import MessagesRequest
from schemas.chat import ChatCompletionRequest
from schemas.completion import CompletionRequest
from schemas.envelope import Item
from schemas.errors import ApiError
from schemas.fields import NamedToolChoice
from schemas.limits import ModelLimits
from schemas.messages import check_parts
from schemas.openai_responses import ResponsesRequest
from schemas.refusals import bad_request
from schemas.tokenize import TokenizeChatRequest
from workers.render.answers import Rendered
from workers.render.chat import MediaRules, count_tool_calls, read_conversation
from workers.render.media import Media, MediaPart
from workers.render.messages_api import chat_request
from workers.render.probes import Probes
from workers.render.prompts import Prompt, PromptRules, check_rules, take_ids, tokenize
from workers.render.requests import ChatInput, chat_input, completion_rules
from workers.render.responses_api import responses_input
from workers.render.sampling import (
    AnyRequest,
    ServerDefaults,
    resolve_max_tokens,
    sampling_params,
    server_defaults,
    structured_outputs,
)
from workers.render.templating import Templates
from workers.text.private_tokens import PrivateTokens
from workers.text.reasoning import PromptReasoning, reasoning_rules
from workers.text.tokenizer import Tokenizer
from workers.text.tools import ToolWishes, adjusted, tool_parser_rules


@dataclass(frozen=True, slots=True)
class ChatPrompt:
    """A chat, rendered as far as text goes."""

    prompt: Prompt
    parts: Sequence[MediaPart] = ()


class Renderer:
    """Built once per process."""

    def __init__(
        self,
        settings: ModelSettings,
        render: RenderSettings,
        directory: ModelDirectory,
        limits: ModelLimits,
        tokenizer: Tokenizer,
        media: Media | None,
    ) -> None:
        """Raise SettingsError for parsers, templates and tokens that do not fit together."""
        self.settings = settings
        self.render = render
        self.limits = limits
        self.tokens = PrivateTokens(_private_texts(render, tokenizer, media))
        self.templates = Templates(render, tokenizer, self.tokens)
        self.tokenizer = tokenizer.renamed(self.tokens.spelling) if self.tokens else tokenizer
        self._probes = Probes(self.templates)
        self._defaults: ServerDefaults = server_defaults(settings, directory.generation_config)
        self._media_rules = _media_rules(settings, render, media, self.tokens)
        tools, reasoning = settings.tool_call_parser, settings.reasoning_parser
        can_call = tools is not None and settings.enable_auto_tool_choice
        self._tool_rules = tool_parser_rules(tools) if can_call and tools else None
        self._reasoning = (
            None if reasoning is None else PromptReasoning(reasoning_rules(reasoning), tokenizer)
        )

    # --- chat

    def chat_input(self, request: ChatCompletionRequest) -> ChatInput:
        """Raise ApiError for what this server does not take."""
        if request.use_beam_search:
            raise _no_beam_search()
        self._check_tool_choice(request)
        self.templates.check_trust(request.chat_template, request.chat_template_kwargs)
        check_parts([m for m in request.messages if isinstance(m.get("content"), list)])
        return chat_input(
            request,
            self.templates,
            self.limits,
            hides_unused_tools=self.render.exclude_tools_when_tool_choice_none,
        )

    def responses_input(self, request: ResponsesRequest) -> ChatInput:
        """Raise ApiError for what this server does not take."""
        given = responses_input(
            request,
            self.templates,
            self.limits,
            hides_unused_tools=self.render.exclude_tools_when_tool_choice_none,
        )
        self.templates.check_trust(None, request.chat_template_kwargs)
        return given

    def messages_request(self, request: MessagesRequest) -> ChatCompletionRequest:
        """The chat request that a Messages request is for this model."""
        return chat_request(
            request,
            system_first=self._probes.system_first,
            disabled_effort=self.render.anthropic_disabled_thinking_effort
            or self._probes.disabled_effort,
        )

    def tokenize_input(self, request: TokenizeChatRequest) -> ChatInput:
        chat = request.to_chat_request()
        self.templates.check_trust(chat.chat_template, chat.chat_template_kwargs)
        check_parts([m for m in chat.messages if isinstance(m.get("content"), list)])
        given = chat_input(chat, self.templates, self.limits, hides_unused_tools=False)
        self._check_media_kwargs(given)
        return given

    def chat_prompt(self, given: ChatInput) -> ChatPrompt:
        self._check_media_kwargs(given)
        check_rules(given.rules)
        if given.reused_ids is not None:
            return ChatPrompt(Prompt(list(given.reused_ids)))
        text, parts = self._chat_text(given)
        return ChatPrompt(self._tokenize([text], given.rules)[0], parts)

    def chat_ids(self, given: ChatInput) -> list[int]:
        """The prompt's ids whatever its length, media as their placeholders."""
        text, _ = self._chat_text(given)
        add_special_tokens = given.rules.add_special_tokens
        return self.tokenizer.encode(text, add_special_tokens=add_special_tokens)

    def _chat_text(self, given: ChatInput) -> tuple[str, Sequence[MediaPart]]:
        template = self.templates.choose(given.template)
        conversation = read_conversation(
            given.messages, self.templates.content_format(given.template), self._media_rules
        )
        text = self.templates.render(template, conversation.messages, given.template)
        return text, conversation.parts

    def finish_chat(
        self,
        given: ChatInput,
        prompt: Prompt,
        request_id: str,
        items: Sequence[Item],
    ) -> Rendered:
        """The answer without media. `prompt` is as it is sent."""
        request = given.request
        tools = self._adjusted(given.tools)
        params = self._sampling(request, prompt, given.rules, given.max_tokens, tools)
        kwargs = given.template.kwargs
        is_chat = isinstance(request, ChatCompletionRequest)
        return Rendered(
            request_id=request_id,
            ids=prompt.ids,
            sampling_params=params,
            model=request.model,
            offsets=None if items else prompt.offsets,
            text=prompt.text,
            items=items,
            reasoning_ended=self._reasoning_ended(request, prompt.ids, kwargs) if is_chat else None,
            reasoning_kwargs=None if self._reasoning is None else kwargs,
            parse_context=_parse_context(request, kwargs),
            options=_copied(request),
        )

    def _adjusted(self, wishes: ToolWishes) -> ToolWishes:
        """What the configured parsers make of the request."""
        if self._reasoning is not None and self._reasoning.rules.keeps_special_tokens:
            wishes = replace(wishes, skip_special_tokens=False)
        if self._tool_rules is None:
            return wishes
        if self._reasoning is None and wishes.choice == "none":
            return wishes
        return adjusted(wishes, self._tool_rules, self.render.tool_strict_level)

    def _check_tool_choice(self, request: ChatCompletionRequest) -> None:
        choice = request.tool_choice
        if self._tool_rules is not None or choice in (None, "none"):
            return
        if choice == "auto":
            if self.settings.enable_auto_tool_choice:
                return
            raise bad_request(
                '"auto" tool choice requires --enable-auto-tool-choice and --tool-call-parser to be'
                " set"
            )
        named = choice.function.name if isinstance(choice, NamedToolChoice) else None
        wish = f'"{choice}"' if named is None else f'function "{named}"'
        raise bad_request(f"tool_choice={wish} requires --tool-call-parser to be set")

    def _check_media_kwargs(self, given: ChatInput) -> None:
        if self.render.trust_request_mm_kwargs:
            return
        names = {
            "mm_processor_kwargs": "multimodal preprocessing",
            "media_io_kwargs": "media loading",
        }
        for name, what in names.items():
            if getattr(given, name):
                raise bad_request(
                    f"Per-request {name} are disabled by default because they can change {what}"
                    " resource usage. Start the server with --trust-request-mm-kwargs only when"
                    " clients are trusted.",
                    name,
                )

    def _reasoning_ended(
        self, request: AnyRequest, ids: Sequence[int], kwargs: Mapping[str, Any]
    ) -> bool | None:
        if isinstance(request, ChatCompletionRequest) and not request.include_reasoning:
            return True
        return None if self._reasoning is None else self._reasoning.has_ended(ids, kwargs)

    # --- completions

    def completion_prompts(self, request: CompletionRequest) -> list[Prompt]:
        """Raise ApiError for what no completion can be made of."""
        if request.use_beam_search:
            raise _no_beam_search()
        _check_completion(request)
        rules = completion_rules(request, self.limits)
        check_rules(rules)
        texts = [prompt for prompt in request.prompts if isinstance(prompt, str)]
        if texts:
            return self._tokenize(texts, rules)
        prompts = [take_ids(self.tokenizer, ids, rules) for ids in request.prompts]
        if request.echo and not request.return_token_ids:
            prompts = [replace(p, text=self._decode(p.ids)) for p in prompts]
        return prompts

    def finish_completion(
        self, request: CompletionRequest, prompt: Prompt, request_id: str
    ) -> Rendered:
        rules = completion_rules(request, self.limits)
        tools = ToolWishes(
            structured_outputs=structured_outputs(
                request.structured_outputs, request.response_format
            ),
            skip_special_tokens=request.skip_special_tokens,
        )
        return Rendered(
            request_id=request_id,
            ids=prompt.ids,
            sampling_params=self._sampling(request, prompt, rules, request.max_tokens, tools),
            model=request.model,
            offsets=prompt.offsets,
            text=prompt.text,
            options=_copied(request),
        )

    # --- both

    def encode(self, text: str, add_special_tokens: bool) -> list[int]:
        return self.tokenizer.encode(text, add_special_tokens=add_special_tokens)

    def pieces(self, ids: Sequence[int]) -> list[str]:
        """The vocabulary's own writing of tokens."""
        return [self.tokens.reveal(self.tokenizer.piece(token) or "") for token in ids]

    def _decode(self, ids: Sequence[int]) -> str:
        return self.tokens.reveal(self.tokenizer.decode(ids))

    def _tokenize(self, texts: Sequence[str], rules: PromptRules) -> list[Prompt]:
        prompts = tokenize(self.tokenizer, texts, rules)
        return [_revealed(prompt, self.tokens) for prompt in prompts]

    def _sampling(
        self,
        request: AnyRequest,
        prompt: Prompt,
        rules: PromptRules,
        asked: int | None,
        tools: ToolWishes,
    ) -> dict[str, Any]:
        if not prompt.ids:
            raise bad_request("No token_ids rendered")
        max_tokens = resolve_max_tokens(
            asked,
            prompt_length=len(prompt.ids),
            truncated_to=rules.truncate_to,
            limits=self.limits,
            defaults=self._defaults,
        )
        params = sampling_params(
            request,
            max_tokens,
            self._defaults,
            self.limits,
            structured_outputs=tools.structured_outputs,
            skip_special_tokens=tools.skip_special_tokens,
        )
        return params.to_wire()


def _private_texts(render: RenderSettings, tokenizer: Tokenizer, media: Media | None) -> list[str]:
    """Tokens that a caller's text must never become."""
    texts = [] if media is None else list(media.literals)
    if render.escape_control_tokens:
        texts += [
            t for t, token in tokenizer.added_tokens.items() if token in tokenizer.special_ids
        ]
    return texts


def _media_rules(
    settings: ModelSettings, render: RenderSettings, media: Media | None, tokens: PrivateTokens
) -> MediaRules:
    if media is None:
        return MediaRules()
    return MediaRules(
        limits=media.limits,
        max_limits=media.max_limits,
        placeholder=lambda modality, index: tokens.hide(media.placeholder(modality, index)),
        takes_embeds=settings.enable_mm_embeds,
        interleave=render.interleave_mm_strings,
    )


def _no_beam_search() -> Exception:
    return bad_request("Beam search is not supported by the render endpoint")


def _check_completion(request: CompletionRequest) -> None:
    if request.suffix is not None:
        raise ApiError(_why_no_suffix(request), param="suffix")
    if request.prompt_embeds is not None:
        raise bad_request(
            "You must set `--enable-prompt-embeds` to input `prompt_embeds`.", "prompt_embeds"
        )
    if not request.prompts:
        raise bad_request("You must pass at least one prompt", "prompt")


def _why_no_suffix(request: CompletionRequest) -> str:
    if request.echo:
        return "Echo is unsupported with suffix."
    if request.prompt_embeds is not None:
        return "suffix is not supported with prompt_embeds"
    if request.truncate_prompt_tokens is not None:
        return "suffix is not supported with truncate_prompt_tokens"
    return "suffix is only supported for models with FIM completion rendering"


def _revealed(prompt: Prompt, tokens: PrivateTokens) -> Prompt:
    if prompt.text is None or not tokens:
        return prompt
    offsets = prompt.offsets
    if offsets is not None:
        position = tokens.reveal_positions(prompt.text)
        offsets = [(position(start), position(end)) for start, end in offsets]
    return replace(prompt, text=tokens.reveal(prompt.text), offsets=offsets)


def _parse_context(request: AnyRequest, kwargs: Mapping[str, Any]) -> dict[str, Any] | None:
    """What derender needs of the request."""
    if not isinstance(request, ChatCompletionRequest):
        return None
    choice = request.tool_choice
    return {
        "tools": None if request.tools is None else [t.model_dump() for t in request.tools],
        "tool_choice": choice.model_dump() if isinstance(choice, NamedToolChoice) else choice,
        "parallel_tool_calls": request.parallel_tool_calls,
        "include_reasoning": request.include_reasoning,
        "chat_template_kwargs": kwargs,
        "history_tool_call_cnt": count_tool_calls(request.messages),
    }


def _copied(request: AnyRequest) -> dict[str, Any]:
    """Fields of the answer that repeat the request's."""
    stream = bool(request.stream)
    options = getattr(request, "stream_options", None)
    return {
        "return_token_ids": getattr(request, "return_token_ids", None),
        "stream": stream,
        "stream_options": options.model_dump() if stream and options else None,
        "cache_salt": request.cache_salt,
        "priority": request.priority,
        "kv_transfer_params": _without_prompt_ids(request) or None,
        "ec_transfer_params": request.ec_transfer_params or None,
    }


def _without_prompt_ids(request: AnyRequest) -> dict[str, Any]:
    given = request.kv_transfer_params or {}
    if isinstance(request, CompletionRequest):
        return given
    return {key: value for key, value in given.items() if key != "prompt_token_ids"}
