"""Which chat template a request gets, with which variables, and the text it makes.

01-render §4.4-4.5. Knows no tokenization and no HTTP.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

from runtime.errors import SettingsError
from runtime.settings import RenderSettings
from schemas.errors import ApiError
from schemas.fields import ReasoningEffort
from schemas.refusals import bad_request
from workers.render.chat import Message, without_developer_role
from workers.text.content_format import ContentFormat
from workers.text.private_tokens import PrivateTokens
from workers.text.template_processes import (
    RequestTemplate,
    RequestTemplates,
    TemplateProcesses,
)
from workers.text.templates import NO_TEMPLATE, ChatTemplate, TemplateCache
from workers.text.tokenizer import Tokenizer
from workers.text.tokenizer_files import DEFAULT_TEMPLATE, TOOL_TEMPLATE

_MB = 1024 * 1024
_UNSET = (None, "auto")
_BUILT_IN_KWARGS = {"cohere_format": "cmd4"}


Template: TypeAlias = ChatTemplate | RequestTemplate


@dataclass(frozen=True, slots=True)
class OpenTemplate:
    template: Template | ApiError
    """The error where there is none, or it is no template."""
    content_format: ContentFormat
    """What the messages must look like."""


@dataclass(frozen=True, slots=True)
class TemplateInput:
    """What a request gives to its template."""

    kwargs: Mapping[str, Any]
    """Effective: the server's defaults with the request's over them."""
    tools: list[dict[str, Any]] | None = None
    template: str | None = None
    """The request's own."""
    continue_final_message: bool = False


class Templates:
    """The templates of one model on one server."""

    def __init__(
        self, settings: RenderSettings, tokenizer: Tokenizer, tokens: PrivateTokens
    ) -> None:
        """Raise SettingsError where a template that is set up is no template."""
        self._settings = settings
        self._tokens = tokens
        self._named = tokenizer.chat_templates
        # Only among several does a template go by its name; a single one has none.
        self._by_name = self._named if len(self._named) > 1 else {}
        self._processor = tokenizer.processor_template
        self._special_tokens = {
            name: tokens.hide(text) for name, text in tokenizer.special_tokens.items()
        }
        self._given = _given_template(settings.chat_template)
        self._cache = TemplateCache(tokens)
        self._of_requests = RequestTemplates(
            TemplateProcesses(
                timeout_s=settings.chat_template_timeout_s,
                memory_bytes=settings.chat_template_memory_mb * _MB,
            ),
            tokens,
        )
        self._defaults = _BUILT_IN_KWARGS | settings.default_chat_template_kwargs
        set_up = [self._given, self._processor, *self._named.values()]
        self._own = frozenset(filter(None, [*set_up, self._defaults.get("chat_template")]))
        self._compile_own()

    def effective_kwargs(
        self, own: Mapping[str, Any] | None, fields: Mapping[str, Any]
    ) -> dict[str, Any]:
        """Defaults, over them the request's kwargs, over them what its fields say."""
        own = own or {}
        effort = self._effort(fields.get("reasoning_effort"))
        merged = {**own, **_set_values({**fields, "reasoning_effort": effort})}
        if effort is not None and "enable_thinking" not in own:
            merged["enable_thinking"] = effort != "none"
        return self._defaults | _set_values(merged)

    def _effort(self, asked: ReasoningEffort | None) -> str | None:
        """What this model's template calls it. An effort among the kwargs is the template's own."""
        return None if asked is None else self._settings.reasoning_effort_map.get(asked, asked)

    def check_trust(self, template: str | None, kwargs: Mapping[str, Any] | None) -> None:
        """Refuse a template that came with the request, unless clients are trusted."""
        among_kwargs = (kwargs or {}).get("chat_template")
        if self._settings.trust_request_chat_template:
            if not isinstance(among_kwargs, str | None):
                raise bad_request("chat_template must be a string.", "chat_template_kwargs")
            return
        if template is not None or among_kwargs is not None:
            raise bad_request(
                "Chat template is passed with request, but --trust-request-chat-template is not"
                " set. Refused request with untrusted chat template."
            )

    def is_brought(self, given: TemplateInput) -> bool:
        """Whether the request is rendered by a template that came with it."""
        return self._source(given, given.kwargs.get("chat_template"))[1]

    def open(self, given: TemplateInput) -> OpenTemplate:
        """Where there is no template, the error waits until something is rendered."""
        try:
            template: Template | ApiError = self._choose(given, given.kwargs.get("chat_template"))
        except ApiError as error:
            template = error
        return OpenTemplate(template, self._content_format(given, template))

    def _content_format(self, given: TemplateInput, template: Template | ApiError) -> ContentFormat:
        """A template among the kwargs has no say in it."""
        chosen = self._settings.chat_template_content_format
        if chosen != "auto":
            return chosen
        if self._source(given, None) != self._source(given, given.kwargs.get("chat_template")):
            try:
                template = self._choose(given, None)
            except ApiError:
                return "string"
        return "string" if isinstance(template, ApiError) else template.content_format

    def _choose(self, given: TemplateInput, among_kwargs: str | None) -> Template:
        source, is_brought = self._source(given, among_kwargs)
        if source is None:
            source = self._own_template(has_tools=given.tools is not None)
        return self._of_requests.get(source) if is_brought else self._cache.get(source)

    def _source(self, given: TemplateInput, among_kwargs: str | None) -> tuple[str | None, bool]:
        """What the server or the request names, and whether the request brings it along."""
        named = given.template or self._given or among_kwargs
        if named is None:
            return None, False
        source = self._by_name.get(named, named)
        return source, source not in self._own

    def render(
        self, opened: OpenTemplate, messages: Sequence[Message], given: TemplateInput
    ) -> str:
        """Raise ApiError where there is no template, or it refuses."""
        template = opened.template
        if isinstance(template, ApiError):
            raise template
        if not messages:
            raise bad_request(
                "Cannot apply chat template to an empty conversation. Provide at least one message."
            )
        conversation = list(messages)
        if not template.knows_developer:
            conversation = without_developer_role(conversation)
        return template.render(
            conversation,
            given.kwargs,
            tools=given.kwargs.get("tools", given.tools),
            special_tokens=self._special_tokens,
            continue_final_message=given.continue_final_message,
        )

    def close(self) -> None:
        """End what renders the templates of requests."""
        self._of_requests.close()

    def own_sources(self) -> list[str]:
        """The server's templates for requests without and with tools."""
        if self._given is not None:
            return [self._by_name.get(self._given, self._given)]
        try:
            return [self._own_template(has_tools=has_tools) for has_tools in (False, True)]
        except ApiError:
            return []

    def _own_template(self, *, has_tools: bool) -> str:
        if not has_tools and self._processor is not None:
            return self._processor
        if has_tools and TOOL_TEMPLATE in self._named:
            return self._named[TOOL_TEMPLATE]
        found = self._named.get(DEFAULT_TEMPLATE)
        if found is None:
            raise bad_request(NO_TEMPLATE)
        return found

    def _compile_own(self) -> None:
        for source in self._own:
            try:
                self._cache.get(source)
            except (ApiError, MemoryError) as error:
                raise SettingsError(f"the chat template cannot be used: {error}") from None


def _given_template(setting: str | None) -> str | None:
    """The flag holds a file's path or the template itself."""
    if setting is None:
        return None
    try:
        return Path(setting).read_text(encoding="utf-8")
    except OSError as error:
        if any(mark in setting for mark in "{}\n"):
            return setting
        raise SettingsError(f"the chat template {setting} cannot be read: {error}") from None


def _set_values(values: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in values.items() if value not in _UNSET}
