"""Which content parts of a message are text and which are media.

Knows nothing else of either.
"""

from collections.abc import Mapping

TEXT_KEYS = {
    "text": "text",
    "input_text": "text",
    "output_text": "text",
    "refusal": "refusal",
    "thinking": "thinking",
}
"""Types of parts that are text, and the key it is under."""
REFERENCE = "tool_reference"
MEDIA_KEYS = (
    "image_url", "image_pil", "image_embeds", "audio_embeds", "video_embeds", "prompt_embeds",
    "audio_url", "input_audio", "video_url",
)  # fmt: skip
"""By which a part without type, or with a uuid, is recognised; the first one present counts."""


def has_media(messages: object) -> bool:
    """Whether any message, of a body that was not looked at yet, has a part that is a medium."""
    contents = (
        [message.get("content") for message in messages if isinstance(message, Mapping)]
        if isinstance(messages, list)
        else []
    )
    return any(
        is_medium(part) for content in contents if isinstance(content, list) for part in content
    )


def is_medium(part: object) -> bool:
    """Whether rendering the part makes a medium of it, if it can be rendered at all."""
    if not isinstance(part, Mapping):
        return False
    kind = part.get("type")
    if kind is None or part.get("uuid") is not None:
        return any(key in part for key in MEDIA_KEYS)
    return not (isinstance(kind, str) and (kind in TEXT_KEYS or kind == REFERENCE))
