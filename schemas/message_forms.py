"""The forms a chat message may have: OpenAI's roles, and one open form for everything else (01 §4).

Names of the message forms and tool calls show in the `param` of schema errors, so they are the
ones clients know. Only shapes; `schemas.messages` applies them.
"""

from collections.abc import Iterable
from typing import Literal, Required, TypeAlias

from typing_extensions import TypedDict


class CacheBreakpoint(TypedDict, total=False):
    mode: Required[Literal["explicit"]]
    ttl: Literal["30m", "12h"]


class ChatCompletionContentPartTextParam(TypedDict, total=False):
    text: Required[str]
    type: Required[Literal["text"]]
    prompt_cache_breakpoint: CacheBreakpoint


class ChatCompletionContentPartRefusalParam(TypedDict, total=False):
    refusal: Required[str]
    type: Required[Literal["refusal"]]


class ImageURL(TypedDict, total=False):
    url: Required[str]
    detail: Literal["auto", "low", "high", "original"]


class ChatCompletionContentPartImageParam(TypedDict, total=False):
    image_url: Required[ImageURL]
    type: Required[Literal["image_url"]]
    prompt_cache_breakpoint: CacheBreakpoint


class InputAudio(TypedDict, total=False):
    data: Required[str]
    format: Required[Literal["wav", "mp3"]]


class ChatCompletionContentPartInputAudioParam(TypedDict, total=False):
    input_audio: Required[InputAudio]
    type: Required[Literal["input_audio"]]
    prompt_cache_breakpoint: CacheBreakpoint


class FileReference(TypedDict, total=False):
    file_data: str
    file_id: str
    filename: str


class File(TypedDict, total=False):
    file: Required[FileReference]
    type: Required[Literal["file"]]
    prompt_cache_breakpoint: CacheBreakpoint


OpenAIPart: TypeAlias = (
    ChatCompletionContentPartTextParam
    | ChatCompletionContentPartImageParam
    | ChatCompletionContentPartInputAudioParam
    | File
)


class URL(TypedDict, total=False):
    url: Required[str]


class ChatCompletionContentPartAudioParam(TypedDict, total=False):
    audio_url: Required[URL]
    type: Required[Literal["audio_url"]]


class ChatCompletionContentPartVideoParam(TypedDict, total=False):
    video_url: Required[URL]
    type: Required[Literal["video_url"]]


Embeds: TypeAlias = str | dict[str, str | list[int | float]]
"""Base64 of a tensor, or fields of them."""


class ImageEmbedsPart(TypedDict, total=False):
    image_embeds: Embeds | None
    type: Required[Literal["image_embeds"]]
    uuid: str | None


class AudioEmbedsPart(TypedDict, total=False):
    audio_embeds: Embeds | None
    type: Required[Literal["audio_embeds"]]
    uuid: str | None


class VideoEmbedsPart(TypedDict, total=False):
    video_embeds: Embeds | None
    audio_embeds: Embeds | None
    type: Required[Literal["video_embeds"]]
    uuid: str | None


class PromptEmbedsPart(TypedDict, total=False):
    data: Required[str]
    type: Required[Literal["prompt_embeds"]]


class AnyPart(TypedDict, total=False):
    """Any object at all, as the form of in-process images is: parts are looked at when rendered."""

    image_pil: None
    uuid: str | None


class PlainImagePart(TypedDict, total=False):
    image_url: str | None
    uuid: str | None


class PlainAudioPart(TypedDict, total=False):
    audio_url: str | None


class PlainVideoPart(TypedDict, total=False):
    video_url: str | None
    uuid: str | None


class ToolReferencePart(TypedDict, total=False):
    name: str
    type: Literal["tool_reference"]


class ThinkingPart(TypedDict, total=False):
    thinking: Required[str]
    closed: bool
    type: Required[Literal["thinking"]]


OpenPart: TypeAlias = (
    OpenAIPart
    | ChatCompletionContentPartAudioParam
    | ChatCompletionContentPartVideoParam
    | ChatCompletionContentPartRefusalParam
    | AnyPart
    | PlainImagePart
    | ImageEmbedsPart
    | AudioEmbedsPart
    | VideoEmbedsPart
    | PromptEmbedsPart
    | PlainAudioPart
    | PlainVideoPart
    | ToolReferencePart
    | str
    | ThinkingPart
)


class CalledFunction(TypedDict, total=False):
    arguments: Required[str]
    name: Required[str]


class ChatCompletionMessageFunctionToolCallParam(TypedDict, total=False):
    id: Required[str]
    function: Required[CalledFunction]
    type: Required[Literal["function"]]


class CalledTool(TypedDict, total=False):
    input: Required[str]
    name: Required[str]


class ChatCompletionMessageCustomToolCallParam(TypedDict, total=False):
    id: Required[str]
    custom: Required[CalledTool]
    type: Required[Literal["custom"]]


class FunctionDescription(TypedDict, total=False):
    name: Required[str]
    description: str
    parameters: dict[str, object]
    strict: bool | None


class FunctionTool(TypedDict, total=False):
    function: Required[FunctionDescription]
    type: Required[Literal["function"]]


class ChatCompletionDeveloperMessageParam(TypedDict, total=False):
    content: Required[str | Iterable[ChatCompletionContentPartTextParam]]
    role: Required[Literal["developer"]]
    name: str


class ChatCompletionSystemMessageParam(TypedDict, total=False):
    content: Required[str | Iterable[ChatCompletionContentPartTextParam]]
    role: Required[Literal["system"]]
    name: str


class ChatCompletionUserMessageParam(TypedDict, total=False):
    content: Required[str | Iterable[OpenAIPart]]
    role: Required[Literal["user"]]
    name: str


class AudioReference(TypedDict, total=False):
    id: Required[str]


class ChatCompletionAssistantMessageParam(TypedDict, total=False):
    role: Required[Literal["assistant"]]
    audio: AudioReference | None
    content: (
        str
        | Iterable[ChatCompletionContentPartTextParam | ChatCompletionContentPartRefusalParam]
        | None
    )
    function_call: CalledFunction | None
    name: str
    refusal: str | None
    tool_calls: Iterable[
        ChatCompletionMessageFunctionToolCallParam | ChatCompletionMessageCustomToolCallParam
    ]


class ChatCompletionToolMessageParam(TypedDict, total=False):
    content: Required[str | Iterable[ChatCompletionContentPartTextParam]]
    role: Required[Literal["tool"]]
    tool_call_id: Required[str]


class ChatCompletionFunctionMessageParam(TypedDict, total=False):
    content: Required[str | None]
    name: Required[str]
    role: Required[Literal["function"]]


class CustomChatCompletionMessageParam(TypedDict, total=False):
    """Any role, and every kind of part we render."""

    role: Required[str]
    content: str | list[OpenPart]
    name: str
    tool_call_id: str | None
    tool_calls: list[ChatCompletionMessageFunctionToolCallParam] | None
    reasoning: str | PromptEmbedsPart | None
    tools: list[FunctionTool] | None
    task: str | None


AnyMessage: TypeAlias = (
    ChatCompletionDeveloperMessageParam
    | ChatCompletionSystemMessageParam
    | ChatCompletionUserMessageParam
    | ChatCompletionAssistantMessageParam
    | ChatCompletionToolMessageParam
    | ChatCompletionFunctionMessageParam
    | CustomChatCompletionMessageParam
)
