"""Messages of a request become the conversation a template sees, and the media in it.

01-render §4.1-4.3. Renders nothing and fetches nothing.
"""

import json
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from schemas.refusals import bad_request
from workers.render.media import MediaPart
from workers.render.parts import MediumPart, Part, ReferencePart, TextPart, read_part
from workers.text.content_format import ContentFormat

Message = dict[str, Any]

_BILLING_HEADER = "x-anthropic-billing-header"
_SEPARATOR = "\n"


@dataclass(frozen=True, slots=True)
class MediaRules:
    """What a conversation may hold of media, and how it is written in "string" content."""

    limits: Mapping[str, int] = field(default_factory=dict)
    max_limits: Mapping[str, int] = field(default_factory=dict)
    placeholder: Callable[[str, int], str] | None = None
    """Text for the n-th (from 0) item of a modality; None: the model takes no media."""
    takes_embeds: bool = False
    interleave: bool = False
    """Put placeholders where the parts are instead of in front of the message."""


@dataclass(frozen=True, slots=True)
class Conversation:
    messages: list[Message]
    parts: list[MediaPart]
    """In the order of the messages."""


def all_parts(message: Message) -> Iterable[Any]:
    parts: Iterable[Any] = message["content"]
    return parts


def read_conversation(
    messages: Sequence[Message],
    content_format: ContentFormat,
    rules: MediaRules,
    *,
    parts_of: Callable[[Message], Iterable[Any]] = all_parts,
) -> Conversation:
    """Raise ApiError for parts and tool calls that cannot be rendered, the first one of them.

    `parts_of` gives the parts of a message whose content is a list, and may refuse some.
    """
    media = _MediaList(rules)
    read = [_read_message(message, content_format, media, parts_of) for message in messages]
    media.check_mixture()
    return Conversation(read, media.parts)


class _MediaList:
    """Collects the media of one prompt and keeps them within the limits."""

    def __init__(self, rules: MediaRules) -> None:
        self.rules = rules
        self.parts: list[MediaPart] = []
        self._counts: Counter[tuple[str, bool]] = Counter()

    def add(self, part: MediaPart) -> str:
        """The placeholder text of the new item."""
        rules = self.rules
        if rules.placeholder is None:
            raise bad_request(f"The model takes no {part.modality}: it is not a multimodal model")
        if part.form == "embeds" and not rules.takes_embeds:
            raise bad_request(
                f"You must set `--enable-mm-embeds` to input `{part.param}`", part.param
            )
        index = self._counts[_kind(part)]
        self._check_limit(part, index + 1)
        self._counts[_kind(part)] += 1
        self.parts.append(part)
        return rules.placeholder(part.modality, index)

    def _check_limit(self, part: MediaPart, count: int) -> None:
        limit = self.rules.limits.get(part.modality, 0)
        most = self.rules.max_limits.get(part.modality, 0)
        if count <= limit or (part.form == "embeds" and limit == 0 and most > 0):
            return
        hint = " Set `--limit-mm-per-prompt` to increase this limit." if count <= most else ""
        raise bad_request(
            f"At most {limit} {part.modality}(s) may be provided in one prompt.{hint}",
            part.modality,
        )

    def check_mixture(self) -> None:
        kinds = self._counts.keys()
        for modality in ("image", "audio", "video"):
            if {(modality, True), (modality, False)} <= kinds:
                raise bad_request(
                    f"Mixing raw {modality} and embedding inputs is not allowed",
                    f"{modality}_embeds",
                )


def _kind(part: MediaPart) -> tuple[str, bool]:
    return part.modality, part.form == "embeds"


def _read_message(
    message: Message,
    content_format: ContentFormat,
    media: _MediaList,
    parts_of: Callable[[Message], Iterable[Any]],
) -> Message:
    role = message["role"]
    parts = _parts(message, parts_of)
    write = _as_list if content_format == "openai" else _as_text
    result: Message = {"role": role, "content": write(parts, media)}
    if role == "assistant":
        _add_assistant_fields(result, message)
    elif role == "tool":
        _add_tool_fields(result, message)
    for key in ("name", "task"):
        if isinstance(message.get(key), str):
            result[key] = message[key]
    if role == "developer":
        result["tools"] = message.get("tools")
    return result


def _parts(message: Message, parts_of: Callable[[Message], Iterable[Any]]) -> Iterator[Part]:
    """One by one, so that the first bad part or the first medium too many is what is refused."""
    content = message.get("content")
    if content is None:
        return
    raw: Iterable[Any] = [content] if isinstance(content, str) else parts_of(message)
    if message["role"] == "system":
        raw = _without_billing_header(raw)
    for entry in raw:
        part = read_part(entry)
        if part is not None:
            yield part


def _without_billing_header(parts: Iterable[Any]) -> Iterable[Any]:
    """A line that some gateways put first; it changes with every request."""
    for part in parts:
        text = (
            part.get("text") if isinstance(part, Mapping) and part.get("type") == "text" else part
        )
        if not (isinstance(text, str) and text.startswith(_BILLING_HEADER)):
            yield part
            continue
        rest = text.partition("\n")[2]
        if rest:
            yield rest if isinstance(part, str) else {**part, "text": rest}


def _as_list(parts: Iterable[Part], media: _MediaList) -> list[dict[str, Any]]:
    content: list[dict[str, Any]] = []
    for part in parts:
        if isinstance(part, TextPart):
            content.append({"type": "text", "text": part.text, **part.extra})
        elif isinstance(part, ReferencePart):
            content.append({"type": "tool_reference", "name": part.name})
        else:
            for medium in part.media:
                media.add(medium)
            content.append({"type": part.media[0].modality, **part.extra})
    return content


def _as_text(parts: Iterable[Part], media: _MediaList) -> str:
    """Text parts joined; placeholders in front, equal ones together, or where their parts are."""
    texts: list[str] = []
    placeholders: dict[str, int] = {}
    for part in parts:
        if isinstance(part, MediumPart):
            added = [media.add(medium) for medium in part.media]
            if media.rules.interleave:
                texts += added
            else:
                for text in added:
                    placeholders[text] = placeholders.get(text, 0) + 1
        else:
            texts.append(part.text if isinstance(part, TextPart) else part.name or "")
    text = _SEPARATOR.join(filter(None, texts))
    front = [p for p, count in placeholders.items() for _ in range(count)]
    return _SEPARATOR.join([*front, text] if text else front)


def _add_assistant_fields(result: Message, message: Mapping[str, Any]) -> None:
    calls = message.get("tool_calls")
    if calls is not None:
        read = [_read_tool_call(call) for call in calls]
        if read:
            result["tool_calls"] = read
    reasoning = message.get("reasoning")
    if reasoning is not None:
        result["reasoning"] = result["reasoning_content"] = reasoning


def _read_tool_call(call: Any) -> dict[str, Any]:
    if not isinstance(call, Mapping):
        raise bad_request("assistant tool_calls entries must be objects.", "tool_calls")
    function = call.get("function")
    if call.get("type", "function") != "function" or not isinstance(function, Mapping):
        raise bad_request(
            "chat completions only support assistant tool_calls of type 'function'.", "tool_calls"
        )
    arguments = _arguments(function.get("arguments"))
    return {**call, "function": {**function, "arguments": arguments}}


def _arguments(given: Any) -> dict[str, Any]:
    """Templates take a mapping. What is none becomes empty: it is history, and one bad call in it
    would make every later turn fail."""
    if isinstance(given, str):
        try:
            given = json.loads(given)
        except (ValueError, RecursionError):
            given = None
    return given if isinstance(given, dict) else {}


def _add_tool_fields(result: Message, message: Mapping[str, Any]) -> None:
    if "tool_call_id" in message:
        result["tool_call_id"] = message["tool_call_id"]
    content = result["content"]
    if isinstance(content, list) and all(part["type"] == "text" for part in content):
        result["content"] = "\n".join(part["text"] for part in content)


def without_developer_role(messages: list[Message]) -> list[Message]:
    """For templates that know no developer role: such messages become system messages, and all
    system messages one, at the front."""
    if all(message["role"] != "developer" for message in messages):
        return messages
    renamed = [
        {k: v for k, v in message.items() if k != "tools"} | {"role": "system"}
        if message["role"] == "developer"
        else message
        for message in messages
    ]
    system = [i for i, message in enumerate(renamed) if message["role"] == "system"]
    if system in ([], [0]):
        return renamed
    texts = [text for i in system if (text := _plain_text(renamed[i]["content"]))]
    others = [message for message in renamed if message["role"] != "system"]
    return [{"role": "system", "content": "\n\n".join(texts)}, *others]


def _plain_text(content: Any) -> str:
    if isinstance(content, str):
        return content
    return "\n".join(part["text"] for part in content if "text" in part)
