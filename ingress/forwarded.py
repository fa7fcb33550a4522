"""What a client has been sent of a stream, so that nothing is sent twice and nothing mixed up.

Work that was lost is done again from its first token. What it repeats is compared with what the
client has and dropped; what differs, or leaves a gap, ends the stream.
"""

from dataclasses import dataclass, field

from schemas.errors import ApiError, FailureCode
from schemas.records.reply import StreamDelta, TextPart


def diverged() -> ApiError:
    return ApiError(
        "The stream was taken over by another worker whose tokens differ from those already sent.",
        status=500,
        type="InternalServerError",
        code=FailureCode.STREAM_DIVERGED,
    )


@dataclass(slots=True)
class _Sent:
    """Of one choice."""

    token_ids: list[int] = field(default_factory=list)
    texts: dict[tuple[str, int], str] = field(default_factory=dict)
    """By channel and tool index."""
    is_finished: bool = False


class Forwarded:
    """One stream's memory: as large as its answer."""

    def __init__(self) -> None:
        self._choices: dict[int, _Sent] = {}

    def fresh(self, delta: StreamDelta) -> StreamDelta | None:
        """What of a delta is new, which counts as sent from now on; None where nothing is.

        ApiError `stream_diverged` where it contradicts what was sent, or does not join on to it.
        """
        sent = self._choices.setdefault(delta.choice, _Sent())
        num_known = _overlap(sent.token_ids, delta.token_ids, delta.start)
        parts = [part for part in (_fresh(sent, part) for part in delta.parts) if part is not None]
        is_news = num_known < len(delta.token_ids) or parts
        is_end = delta.finish_reason is not None and not sent.is_finished
        if not (is_news or is_end):
            return None
        new_ids = delta.token_ids[num_known:]
        sent.token_ids += new_ids
        sent.is_finished |= is_end
        return delta.model_copy(
            update={
                "start": delta.start + num_known,
                "token_ids": new_ids,
                "parts": parts,
                "logprobs": delta.logprobs and delta.logprobs[num_known:],
            }
        )


def _fresh(sent: _Sent, part: TextPart) -> TextPart | None:
    key = (part.channel, part.tool)
    is_new_call = part.tool_name is not None and key not in sent.texts
    known = sent.texts.setdefault(key, "")
    num_known = _overlap(known, part.text, part.start)
    if num_known == len(part.text) and not is_new_call:
        return None
    sent.texts[key] = known + part.text[num_known:]
    update = {"start": part.start + num_known, "text": part.text[num_known:]}
    if not is_new_call:
        update |= {"tool_id": None, "tool_name": None}
    return part.model_copy(update=update)


def _overlap(sent: "list[int] | str", new: "list[int] | str", start: int) -> int:
    """How many of the new ones were sent already."""
    num_known = min(len(sent) - start, len(new))
    if num_known < 0 or sent[start : start + num_known] != new[:num_known]:
        raise diverged()
    return num_known
