"""From a prompt's text or ids to the token ids that are sent: lengths, truncation and offsets.

01-render §5.1 and §7.3. Knows no chat and no media processing.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Literal

from schemas.envelope import Item
from schemas.errors import ApiError
from schemas.refusals import bad_request
from workers.render.media import MediaPart, Span
from workers.text.segments import SegmentEncoder
from workers.text.tokenizer import Offsets, Tokenizer

Side = Literal["left", "right"]


@dataclass(frozen=True, slots=True)
class PromptRules:
    """How one request wants its prompts tokenized."""

    max_model_len: int
    max_output_tokens: int | None
    """As asked for; None: no limit named, 0: nothing is generated."""
    output_param: str
    """Name of that field, for errors."""
    add_special_tokens: bool
    truncate_to: int | None = None
    """Tokens to keep; -1: as many as leave room for one token of output."""
    side: Side | None = None
    want_offsets: bool = False
    single_bos: bool = False
    """Add no BOS to a text that has one."""

    @property
    def num_kept(self) -> int | None:
        if self.truncate_to != -1:
            return self.truncate_to
        return self.max_model_len if self.max_output_tokens == 0 else self.max_model_len - 1


@dataclass(frozen=True, slots=True)
class Prompt:
    ids: list[int]
    offsets: Offsets | None = None
    text: str | None = None
    """What the ids were made from, or (where asked for) what they say."""
    cut: "Cut | None" = None
    """What truncation took away."""


@dataclass(frozen=True, slots=True)
class Cut:
    ids: list[int]
    """As they were before."""
    kept: frozenset[int]
    """Positions in them."""
    is_text_cut: bool
    """Whether the text they were made from had been cut already."""


def check_rules(rules: PromptRules) -> None:
    """Raise ApiError for wishes that no prompt could fulfil."""
    most, asked, kept = rules.max_model_len, rules.max_output_tokens, rules.truncate_to
    if asked is not None and asked > most:
        raise bad_request(
            f"{rules.output_param}={asked} cannot be greater than max_model_len={most}."
            " Please request fewer output tokens.",
            rules.output_param,
            asked,
        )
    if kept is not None and kept > most:
        raise bad_request(
            f"truncate_prompt_tokens={kept} cannot be greater than max_model_len = {most}."
            " Please request a smaller truncation size.",
            "truncate_prompt_tokens",
            kept,
        )


def tokenize(
    tokenizer: Tokenizer,
    texts: Sequence[str],
    rules: PromptRules,
    *,
    turns: SegmentEncoder | None = None,
) -> list[Prompt]:
    """Raise ApiError for a text that does not fit. `turns` is the faster way for conversations."""
    cut = [_fitting_text(tokenizer, text, rules) for text in texts]
    encoded: list[tuple[list[int], Offsets | None]]
    if rules.want_offsets:
        encoded = [_with_offsets(tokenizer, *entry, rules) for entry in cut]
    else:
        parts = [text for text, _ in cut]
        encoded = [(ids, None) for ids in _encode(tokenizer, parts, rules, turns)]
    if rules.single_bos:
        encoded = [_with_single_bos(tokenizer, *entry) for entry in encoded]
    return [
        _truncated(tokenizer, ids, offsets, text, rules, is_text_cut=len(part) < len(text))
        for (ids, offsets), text, (part, _) in zip(encoded, texts, cut, strict=True)
    ]


def take_ids(tokenizer: Tokenizer, ids: Sequence[int], rules: PromptRules) -> Prompt:
    """A prompt that came as token ids."""
    kept = _slice(len(ids), rules.num_kept, rules.side or tokenizer.truncation_side)
    prompt = Prompt(list(ids)[kept])
    _check_length(len(prompt.ids), rules)
    return prompt


def truncate_expanded(
    ids: list[int], items: Sequence[Item], rules: PromptRules, default_side: Side | str
) -> tuple[list[int], list[Item]]:
    """Truncate again after media were put in; no item may be cut."""
    kept = _slice(len(ids), rules.num_kept, rules.side or default_side)
    start, stop, _ = kept.indices(len(ids))
    for item in items:
        end = item.offset + item.length
        if item.offset < start or end > stop:
            raise bad_request(
                f"truncate_prompt_tokens={rules.truncate_to} would split or drop a(n)"
                f" {item.modality} item, which spans tokens {item.offset} to {end} of the"
                f" {len(ids)}-token prompt. Multimodal placeholders expand after truncation is"
                " applied, so the limit must leave every multimodal item intact. Please raise"
                " truncate_prompt_tokens or shorten the multimodal input.",
                "truncate_prompt_tokens",
                rules.truncate_to,
            )
    if start == 0 and stop == len(ids):
        return ids, list(items)
    moved = [item.model_copy(update={"offset": item.offset - start}) for item in items]
    return ids[kept], moved


def check_placeholders(
    prompt: Prompt,
    parts: Sequence[MediaPart],
    locate: Callable[[Sequence[int], Sequence[MediaPart]], Sequence[Span]],
    rules: PromptRules,
) -> None:
    """Raise ApiError where truncation took a medium's placeholder away; names the medium.

    `locate` is `Media.locate`.
    """
    if prompt.cut is None:
        return
    lost = _first_lost(prompt.cut, parts, locate, rules.side)
    if lost is None:
        return
    modality = parts[lost].modality
    same = [number for number, part in enumerate(parts) if part.modality == modality]
    raise bad_request(
        f"truncate_prompt_tokens={rules.truncate_to} would split or drop a(n) {modality} item,"
        f" number {same.index(lost) + 1} of {len(same)} in the prompt. Please raise"
        " truncate_prompt_tokens or shorten the prompt.",
        "truncate_prompt_tokens",
        rules.truncate_to,
    )


def _first_lost(
    cut: Cut,
    parts: Sequence[MediaPart],
    locate: Callable[[Sequence[int], Sequence[MediaPart]], Sequence[Span]],
    side: Side | None,
) -> int | None:
    try:
        spans = locate(cut.ids, parts)
    except ApiError:  # of a template that does not place every medium, unless its text was cut
        first = 0 if side == "left" else len(parts) - 1
        return first if cut.is_text_cut else None
    for number, (start, length) in enumerate(spans):
        if not cut.kept.issuperset(range(start, start + length)):
            return number
    return None


def encode_text(tokenizer: Tokenizer, text: str, *, add_special_tokens: bool) -> list[int]:
    """All of the text's tokens. Raise ApiError for what is no text."""
    with _only_text():
        return tokenizer.encode(text, add_special_tokens=add_special_tokens)


def _encode(
    tokenizer: Tokenizer, texts: list[str], rules: PromptRules, turns: SegmentEncoder | None
) -> list[list[int]]:
    special = rules.add_special_tokens
    if turns is not None and not special:
        with _only_text():
            return [turns.encode(text) for text in texts]
    if len(texts) == 1:
        return [encode_text(tokenizer, texts[0], add_special_tokens=special)]
    with _only_text():
        return tokenizer.encode_batch(texts, add_special_tokens=special)


@contextmanager
def _only_text() -> Iterator[None]:
    """Lone surrogates are the only strings that the tokenizer refuses."""
    try:
        yield
    except TypeError:
        raise bad_request(
            "The prompt holds characters that are no valid Unicode (lone surrogates)."
        ) from None


def _with_offsets(
    tokenizer: Tokenizer, text: str, dropped: int, rules: PromptRules
) -> tuple[list[int], Offsets | None]:
    special = rules.add_special_tokens
    count = rules.num_kept
    with _only_text():
        ids, offsets = tokenizer.encode_with_offsets(text, add_special_tokens=special)
        if rules.side is None and count is not None and 0 < count < len(ids):
            ids, offsets = tokenizer.encode_cut_with_offsets(
                text, count, add_special_tokens=special
            )
    if dropped:
        offsets = [(start + dropped, end + dropped) for start, end in offsets]
    return ids, offsets


def _fitting_text(tokenizer: Tokenizer, text: str, rules: PromptRules) -> tuple[str, int]:
    """The text, cut where it surely will be, and how many characters went from its start."""
    most = rules.max_model_len * tokenizer.max_chars_per_token
    if len(text) <= most:
        return text, 0
    if rules.truncate_to is None:
        raise bad_request(
            f"This model's maximum context length is {rules.max_model_len} tokens. However, your"
            f" prompt contains {len(text)} characters (more than {most} characters, which is the"
            f" upper bound for {rules.max_model_len} input tokens). Please reduce the length of the"
            " input prompt.",
            "input_text",
            len(text),
        )
    if rules.side == "left":
        return text[-most:], len(text) - most
    return (text[:most], 0) if rules.side == "right" else (text, 0)


def _with_single_bos(
    tokenizer: Tokenizer, ids: list[int], offsets: Offsets | None
) -> tuple[list[int], Offsets | None]:
    """The one that the tokenizer adds stays: truncation knows it as such."""
    bos = tokenizer.bos_id
    if bos is None or ids[:2] != [bos, bos] or tokenizer.num_added[0] != 1:
        return ids, offsets
    return ids[1:], None if offsets is None else offsets[1:]


def _truncated(
    tokenizer: Tokenizer,
    ids: list[int],
    offsets: Offsets | None,
    text: str,
    rules: PromptRules,
    *,
    is_text_cut: bool,
) -> Prompt:
    count = rules.num_kept
    lost = Cut(ids, frozenset(range(len(ids))), is_text_cut) if is_text_cut else None
    if count is not None and count < len(ids):
        keep = _kept_positions(tokenizer, len(ids), count, rules)
        lost = Cut(ids, frozenset(keep), is_text_cut)
        ids = [ids[i] for i in keep]
        offsets = None if offsets is None else [offsets[i] for i in keep]
    elif count is None:
        _check_length(min(len(ids), rules.max_model_len + 1), rules)
    return Prompt(ids, offsets, text, lost)


def _kept_positions(tokenizer: Tokenizer, length: int, count: int, rules: PromptRules) -> list[int]:
    """Without an explicit side, the tokenizer truncates: special tokens it adds are kept."""
    positions = list(range(length))
    if rules.side is not None or not rules.add_special_tokens:
        return positions[_slice(length, count, rules.side or tokenizer.truncation_side)]
    before, behind = tokenizer.num_added
    content = positions[before : length - behind]
    left = count - before - behind
    content = content[-left:] if left > 0 else []
    kept = [*positions[:before], *content, *positions[length - behind :]]
    return kept[_slice(len(kept), count, tokenizer.truncation_side)]


def _slice(length: int, count: int | None, side: str) -> slice:
    if count is None or count >= length:
        return slice(0, length)
    if count == 0:
        return slice(0, 0)
    return slice(-count, None) if side == "left" else slice(0, count)


def _check_length(length: int, rules: PromptRules) -> None:
    most = rules.max_model_len
    if length > most:
        least = "at least " if length == most + 1 else ""
        raise bad_request(
            f"This model's maximum context length is {most} tokens. However, your prompt contains"
            f" {least}{length} input tokens, which exceeds this limit even without any output"
            " tokens. Please reduce the length of the input prompt.",
            "input_tokens",
            length,
        )
