"""One model's rendering: everything between a validated request and its answer, but for the media.

All calls are plain computation, safe to make from several threads at once.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from pydantic import ValidationError

from runtime.model_dir import ModelDirectory
from runtime.settings import ModelSettings, RenderSettings
from schemas.anthropic import MessagesRequest
from schemas.chat import ChatCompletionRequest
from schemas.completion import CompletionRequest
from schemas.envelope import Item
from schemas.errors import ApiError
from schemas.limits import ModelLimits
from schemas.messages import each_part
from schemas.openai_responses import ResponsesRequest
from schemas.refusals import bad_request
from schemas.sampling import SamplingParams
from schemas.tokenize import TokenizeChatRequest
from workers.render.answers import Rendered
from workers.render.carried import carried_fields, parse_context
from workers.render.chat import all_parts, read_conversation
from workers.render.completions import (
    check_completion,
    check_prompts,
    completion_rules,
    completion_tools,
)
from workers.render.literals import check_escaping, guard, media_rules
from workers.render.media import Media, MediaPart
from workers.render.messages_api import chat_request
from workers.render.parsers import Parsers
from workers.render.probes import Probes
from workers.render.prompts import (
    Prompt,
    PromptRules,
    check_rules,
    encode_text,
    take_ids,
    tokenize,
)
from workers.render.requests import ChatInput, chat_input
from workers.render.responses_api import responses_input
from workers.render.sampling import AnyRequest, resolve_max_tokens, sampling_params, server_defaults
from workers.render.templating import Templates
from workers.text.segments import SegmentEncoder
from workers.text.tokenizer import Tokenizer
from workers.text.tools import ToolWishes

_MAX_COMPLAINT = 1000
# What a request may change of how its media are treated, and what that costs.
_MEDIA_KWARGS = {
    "mm_processor_kwargs": "multimodal preprocessing",
    "media_io_kwargs": "multimodal media loading",
}


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
        self.limits = limits
        self._render = render
        self._parsers = Parsers(settings, render.tool_strict_level, tokenizer)
        self._tokens, self.tokenizer = guard(render, tokenizer, media)
        self.tokenizer.warm()
        self._turns = SegmentEncoder(self.tokenizer)
        self._templates = Templates(render, tokenizer, self._tokens)
        if render.escape_control_tokens:
            check_escaping(render, tokenizer, self.tokenizer, self._templates)
        self._probes = Probes(self._templates)
        self._defaults = server_defaults(settings, directory.generation_config)
        self._media_rules = media_rules(settings, render, media, self._tokens)

    def close(self) -> None:
        self._templates.close()

    # --- chat: requests of any endpoint in one form

    def chat_input(self, request: ChatCompletionRequest) -> ChatInput:
        """Raise ApiError for what this server does not take."""
        if request.use_beam_search:
            raise _no_beam_search()
        self._parsers.check_tool_choice(request)
        self._check_chat(request)
        return chat_input(
            request,
            self._templates,
            self.limits,
            hides_unused_tools=self._render.exclude_tools_when_tool_choice_none,
        )

    def responses_input(self, request: ResponsesRequest) -> ChatInput:
        """Raise ApiError for what this server does not take."""
        given = responses_input(
            request,
            self._templates,
            self.limits,
            hides_unused_tools=self._render.exclude_tools_when_tool_choice_none,
        )
        self._templates.check_trust(None, request.chat_template_kwargs)
        return given

    def messages_request(self, request: MessagesRequest) -> ChatCompletionRequest:
        """The chat request that a Messages request is for this model."""
        effort = self._render.anthropic_disabled_thinking_effort
        return chat_request(
            request,
            system_first=self._probes.system_first,
            disabled_effort=self._probes.disabled_effort if effort == "auto" else effort,
        )

    def tokenize_input(self, request: TokenizeChatRequest) -> ChatInput:
        """Raise ApiError for what this server does not take."""
        for message in request.messages:
            message.pop("reasoning_content", None)  # its old name is not known here
        try:
            chat = request.to_chat_request()
        except ValidationError as error:
            raise bad_request(str(error)[:_MAX_COMPLAINT]) from None
        self._check_chat(chat)
        given = chat_input(chat, self._templates, self.limits, hides_unused_tools=False)
        self._check_media_kwargs(given)
        return given

    def _check_chat(self, request: ChatCompletionRequest) -> None:
        self._templates.check_trust(request.chat_template, request.chat_template_kwargs)

    def _check_media_kwargs(self, given: ChatInput | CompletionRequest) -> None:
        if self._render.trust_request_mm_kwargs:
            return
        for name, what in _MEDIA_KWARGS.items():
            if getattr(given, name):
                raise bad_request(
                    f"Per-request {name} are disabled by default because they can change {what}"
                    " resource usage. Start the server with --trust-request-mm-kwargs only when"
                    " clients are trusted.",
                    name,
                )

    # --- chat: text and tokens

    def chat_prompt(self, given: ChatInput) -> ChatPrompt:
        """Raise ApiError for messages, templates and lengths that do not do."""
        self._check_media_kwargs(given)
        check_rules(given.rules)
        if given.reused_ids is not None:
            return ChatPrompt(Prompt(list(given.reused_ids)))
        text, parts = self.chat_text(given)
        return ChatPrompt(self._tokenize([text], given.rules, self._turns)[0], parts)

    def brings_template(self, given: ChatInput) -> bool:
        """Whether its template came with the request and may take long."""
        return given.reused_ids is None and self._templates.is_brought(given.template)

    def chat_ids(self, given: ChatInput) -> list[int]:
        """The prompt's ids whatever its length, media as their placeholders."""
        text, _ = self.chat_text(given)
        return self.encode(text, given.rules.add_special_tokens)

    def chat_text(self, given: ChatInput) -> tuple[str, Sequence[MediaPart]]:
        """The prompt as the template writes it, private tokens in their private spelling."""
        opened = self._templates.open(given.template)
        conversation = read_conversation(
            given.messages,
            opened.content_format,
            self._media_rules,
            parts_of=each_part if given.has_openai_messages else all_parts,
        )
        text = self._templates.render(opened, conversation.messages, given.template)
        return text, conversation.parts

    def finish_chat(
        self, given: ChatInput, prompt: Prompt, request_id: str, items: Sequence[Item]
    ) -> Rendered:
        """The answer but for its media. `prompt` is as it is sent."""
        request = given.request
        tools = self._parsers.adjusted(given.tools())
        params = self._sampling(request, prompt, given.rules, given.max_tokens, tools)
        kwargs = given.template.kwargs
        ended = None
        if isinstance(request, ChatCompletionRequest):
            ended = self._parsers.reasoning_ended(request, prompt.ids, kwargs)
        return Rendered(
            request_id=request_id,
            ids=prompt.ids,
            sampling_params=params,
            model=request.model,
            offsets=None if items else prompt.offsets,
            text=prompt.text,
            items=items,
            reasoning_ended=ended,
            reasoning_kwargs=kwargs if self._parsers.has_reasoning else None,
            parse_context=parse_context(request, kwargs, tools.functions),
            options=carried_fields(request),
        )

    # --- completions

    def completion_prompts(self, request: CompletionRequest) -> list[Prompt]:
        """Raise ApiError for what no completion can be made of."""
        if request.use_beam_search:
            raise _no_beam_search()
        check_completion(request)
        self._check_media_kwargs(request)
        rules = completion_rules(request, self.limits)
        check_rules(rules)
        check_prompts(request)
        prompts = request.prompts
        texts = [prompt for prompt in prompts if isinstance(prompt, str)]
        if texts:
            return self._tokenize(texts, rules)
        ids = [prompt for prompt in prompts if not isinstance(prompt, str)]
        taken = [take_ids(self.tokenizer, one, rules) for one in ids]
        if request.echo and not request.return_token_ids:
            return [replace(prompt, text=self._decode(prompt.ids)) for prompt in taken]
        return taken

    def finish_completion(
        self, request: CompletionRequest, prompt: Prompt, request_id: str
    ) -> Rendered:
        rules = completion_rules(request, self.limits)
        tools = completion_tools(request)
        return Rendered(
            request_id=request_id,
            ids=prompt.ids,
            sampling_params=self._sampling(request, prompt, rules, request.max_tokens, tools),
            model=request.model,
            offsets=prompt.offsets,
            text=prompt.text,
            options=carried_fields(request),
        )

    # --- both

    def raw_media_parts(self, parts: Sequence[Mapping[str, Any]]) -> list[MediaPart]:
        """The media of a generate request, under the rules of a chat's."""
        content = []
        for number, part in enumerate(parts):
            kind, url = part["type"], part.get("url")
            if not isinstance(url, str):
                raise bad_request(f"content_parts[{number}].url must be a string", "content_parts")
            uuid = {"uuid": part["uuid"]} if part.get("uuid") is not None else {}
            content.append({"type": kind, kind: {"url": url}, **uuid})
        message = {"role": "user", "content": content}
        return read_conversation([message], "openai", self._media_rules).parts

    def encode(self, text: str, add_special_tokens: bool) -> list[int]:
        return encode_text(self.tokenizer, text, add_special_tokens=add_special_tokens)

    def pieces(self, ids: Sequence[int]) -> list[str]:
        """The vocabulary's own writing of tokens."""
        return [self._tokens.reveal(self.tokenizer.piece(token) or "") for token in ids]

    def _decode(self, ids: Sequence[int]) -> str:
        return self._tokens.reveal(self.tokenizer.decode(ids))

    def _tokenize(
        self, texts: Sequence[str], rules: PromptRules, turns: SegmentEncoder | None = None
    ) -> list[Prompt]:
        prompts = tokenize(self.tokenizer, texts, rules, turns=turns)
        return [self._revealed(prompt) for prompt in prompts] if self._tokens else prompts

    def _revealed(self, prompt: Prompt) -> Prompt:
        """Text and offsets as people read them."""
        if prompt.text is None:
            return prompt
        offsets = prompt.offsets
        if offsets is not None:
            position = self._tokens.reveal_positions(prompt.text)
            offsets = [(position(start), position(end)) for start, end in offsets]
        return replace(prompt, text=self._tokens.reveal(prompt.text), offsets=offsets)

    def _sampling(
        self,
        request: AnyRequest,
        prompt: Prompt,
        rules: PromptRules,
        asked: int | None,
        tools: ToolWishes,
    ) -> SamplingParams:
        if not prompt.ids:
            raise bad_request("No token_ids rendered")
        max_tokens = resolve_max_tokens(
            asked,
            prompt_length=len(prompt.ids),
            truncated_to=rules.truncate_to,
            limits=self.limits,
            defaults=self._defaults,
        )
        return sampling_params(
            request,
            max_tokens,
            self._defaults,
            self.limits,
            structured_outputs=tools.structured_outputs,
            skip_special_tokens=tools.skip_special_tokens,
        )


def _no_beam_search() -> ApiError:
    return bad_request("Beam search is not supported by the render endpoint")
