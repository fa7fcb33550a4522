"""From one output's token ids to its text, cut where generation was told to stop (04 §4).

Pure but for the decoder it is given. Knows neither chat nor completions.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from schemas.chat import ChatCompletionRequest
from schemas.completion import CompletionRequest
from schemas.sampling import SamplingParams
from workers.derender.model import EosIds
from workers.text.detokenizer import Decoder

StopReason = int | str | None


@dataclass(frozen=True, slots=True)
class StopRules:
    """What may have ended an output, and whether it shows."""

    strings: tuple[str, ...] = ()
    token_ids: frozenset[int] = frozenset()
    ignore_eos: bool = False
    is_included: bool = False
    """The stop string or token stays in the text."""
    min_tokens: int = 0
    """Stop strings that end within so many tokens do not count."""


@dataclass(frozen=True, slots=True)
class Ending:
    """An output's ids, and why it ended as far as the engine told."""

    token_ids: Sequence[int]
    finish_reason: str | None
    stop_reason: StopReason

    @property
    def is_stop(self) -> bool:
        return self.finish_reason == "stop"


def stop_rules(
    request: ChatCompletionRequest | CompletionRequest | SamplingParams | None,
) -> StopRules:
    if request is None:
        return StopRules()
    strings = [request.stop] if isinstance(request.stop, str) else request.stop or []
    return StopRules(
        strings=tuple(text for text in strings if text),
        token_ids=frozenset(request.stop_token_ids or ()),
        ignore_eos=request.ignore_eos,
        is_included=request.include_stop_str_in_output,
        min_tokens=request.min_tokens,
    )


def without_stop_token(
    ending: Ending, rules: StopRules, eos: EosIds
) -> tuple[Sequence[int], StopReason]:
    """The ids to decode, and the reason: told, or found by looking at the last id."""
    ids, reason = ending.token_ids, ending.stop_reason
    if not ending.is_stop or isinstance(reason, str) or not ids:
        return ids, reason
    last = ids[-1]
    if reason is None:
        is_primary = not rules.ignore_eos and last == eos.primary
        reason = None if is_primary else _stop_token(last, rules, eos)
        is_stop_token = is_primary or reason is not None
    else:
        is_stop_token = last == reason
    return (ids[:-1] if is_stop_token and not rules.is_included else ids), reason


def _stop_token(last: int, rules: StopRules, eos: EosIds) -> int | None:
    known = rules.token_ids if rules.ignore_eos else rules.token_ids | eos.all
    return last if last in known else None


def output_text(
    ending: Ending, decoder: Decoder, rules: StopRules, eos: EosIds
) -> tuple[str, StopReason]:
    """The text an engine would return for a finished output, and its stop reason."""
    ids, reason = without_stop_token(ending, rules, eos)
    head = decoder.feed(ids[: rules.min_tokens])
    tail = decoder.feed(ids[rules.min_tokens :])
    text = head + tail
    found = find_stop(text, len(tail), _strings(ending, rules))
    if found is None:
        return text, reason
    start, stop = found
    return text[: start + (len(stop) if rules.is_included else 0)], stop


def _strings(ending: Ending, rules: StopRules) -> Sequence[str]:
    """Where the engine told the reason, it is that; else any of the request's."""
    if not ending.is_stop or isinstance(ending.stop_reason, int):
        return ()
    return rules.strings if ending.stop_reason is None else (ending.stop_reason,)


def find_stop(text: str, num_new: int, stops: Sequence[str]) -> tuple[int, str] | None:
    """Where the stop string starts that ends first; its end is in the last `num_new` characters."""
    if not num_new:
        return None
    found = [
        (start + len(stop), order, start)
        for order, stop in enumerate(stops)
        if (start := text.find(stop, max(len(text) - num_new - len(stop) + 1, 0))) >= 0
    ]
    if not found:
        return None
    _, order, start = min(found)
    return start, stops[order]
