"""Prompts that end inside their final message, for a model that is to go on with it.

A tag behind the message's text shows where to cut what a template made. Knows no template.
"""

from typing import Any

from schemas.errors import ApiError

CONTINUE_OR_START = (
    "continue_final_message and add_generation_prompt are not compatible. Use"
    " continue_final_message when you want the model to continue the final message, and"
    " add_generation_prompt when you want to add a header that will prompt it to start a new"
    " assistant message instead."
)
_TAG = "CONTINUE_FINAL_MESSAGE_TAG "


def with_continue_tag(
    messages: list[dict[str, Any]], source: str
) -> tuple[list[dict[str, Any]], str]:
    """Mark the end of the final message's last text; also return that text."""
    last = messages[-1]
    content = last.get("content")
    if content is None:
        raise ApiError(
            'continue_final_message is set but the final message has no "content" to continue!'
        )
    if "content" not in source:
        raise ApiError(
            'continue_final_message is set to "content" but this is not an accepted field in the '
            "chat_template"
        )
    if isinstance(content, str):
        return [*messages[:-1], last | {"content": content + _TAG}], content
    for index in reversed(range(len(content))):
        if "text" in content[index]:
            text = content[index]["text"]
            marked = content[index] | {"text": text + _TAG}
            parts = [*content[:index], marked, *content[index + 1 :]]
            return [*messages[:-1], last | {"content": parts}], text
    raise ApiError(
        "continue_final_message is set but we could not find any text to continue in the final "
        "message!"
    )


def cut_at_tag(rendered: str, final: str) -> str:
    """Drop everything behind the final message; its own trailing space is kept where it was."""
    at = rendered.rfind(_TAG.strip())
    if at < 0 or final.strip() not in rendered:
        raise ApiError(
            "continue_final_message is set but the final message does not appear in the chat after "
            "applying the chat template! This can happen if the chat template deletes portions of "
            "the final message. Please verify the chat template and final message in your chat to "
            "ensure they are compatible."
        )
    cut = rendered[:at]
    return cut if rendered.startswith(_TAG, at) else cut.rstrip()
