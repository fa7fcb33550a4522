"""Where output parsers join in: the one place that tells whether a request needs them.

Without them the text of an output is the content of its message.
"""

from schemas.chat import ChatCompletionRequest
from schemas.refusals import not_implemented
from workers.derender.model import Parsers


def is_active(parsers: Parsers, request: ChatCompletionRequest) -> bool:
    """Whether this request's output has markup to take apart."""
    return parsers.reasoning is not None or (
        parsers.tools is not None and bool(request.tools) and request.tool_choice != "none"
    )


def require_plain(parsers: Parsers, request: ChatCompletionRequest | None) -> None:
    """ApiError 501 for a request whose output only a parser may turn into a message."""
    if request is not None and is_active(parsers, request):
        raise not_implemented(
            "Output parsers are not supported yet: start without --reasoning-parser, and leave"
            " `tools` out or set `tool_choice` to none."
        )
