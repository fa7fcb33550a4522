"""Text to token ids and back, as Hugging Face's fast tokenizers do it.

Safe to share between threads: nothing changes its ids once it is built, and the long calls release
the interpreter lock. Knows no chat and no request.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any, Self

import orjson
import tokenizers
from tokenizers.decoders import DecodeStream

from runtime.errors import SettingsError
from schemas.errors import ApiError
from workers.text.ranked_bpe import MAX_CHARS, MAX_PIECE_CHARS, RankedBpe, ranked_bpe
from workers.text.tokenizer_files import TokenizerFiles, read_tokenizer_files

Offsets = list[tuple[int, int]]

_TOO_LONG_A_RUN = "The text cannot be tokenized: it holds too long a run of one kind of characters."
_CLEAN_UP = (
    (" .", "."), (" ?", "?"), (" !", "!"), (" ,", ","), (" ' ", "'"),
    (" n't", "n't"), (" 'm", "'m"), (" 's", "'s"), (" 've", "'ve"), (" 're", "'re"),
)  # fmt: skip


class Tokenizer:
    """One model's tokenizer."""

    truncation_side = "left"
    """Generative models keep the end of a prompt unless the request says otherwise."""

    def __init__(self, files: TokenizerFiles) -> None:
        self._backend = _build(files)
        # The vocabulary is in the backend now; as Python objects it takes tens of megabytes.
        self._files = files = replace(files, backend=_without_vocabulary(files.backend))
        self._decoder = self._backend.decoder
        self._ranked: RankedBpe | None = None
        self.special_tokens: Mapping[str, str] = files.special_tokens
        """By name (`bos_token` …), as chat templates see them."""
        self.chat_templates = files.chat_templates
        self.processor_template = files.processor_template
        added = self._backend.get_added_tokens_decoder()
        self.is_plain = _is_plain(files.backend, added.values())
        """Whether the text between two added tokens is tokenized alike wherever it stands."""
        self.added_tokens: Mapping[str, int] = {t.content: i for i, t in sorted(added.items())}
        self.special_ids = frozenset(i for i, token in added.items() if token.special)
        """Those that `skip_special_tokens` leaves out of `decode` and streams."""
        named = {*files.special_tokens.values(), *files.extra_special_tokens}
        self.named_special_ids = frozenset(i for t in named if (i := self.token_id(t)) is not None)
        """Those that its configuration names: what Hugging Face calls `all_special_ids`."""
        self.vocab_size: int = self._backend.get_vocab_size(with_added_tokens=True)

    @classmethod
    def from_directory(cls, path: str | Path) -> Self:
        """Raise SettingsError where the directory holds no usable tokenizer."""
        return cls(read_tokenizer_files(Path(path)))

    def renamed(self, names: Mapping[str, str]) -> "Tokenizer":
        """The same tokenizer, where these added tokens are written differently.

        The old texts are ordinary text for it. Raise SettingsError for what is no added token.
        """
        missing = sorted(set(names) - set(self.added_tokens))
        if missing:
            raise SettingsError(f"the tokenizer has no added tokens {missing}")
        other = Tokenizer(_rename(self._files, self._backend, names))
        other.max_chars_per_token = self.max_chars_per_token
        return other

    @property
    def cuts_texts(self) -> bool:
        """Whether a long text is tokenized piece by piece."""
        return self._ranked is not None

    def warm(self) -> None:
        """Encode faster from now on, where the ids are certain to be the same.

        For who encodes the texts of requests: it takes a second and 40 MB for a large vocabulary.
        """
        self._ranked = ranked_bpe(orjson.loads(self._backend.to_str()))

    # --- text to ids

    def encode(self, text: str, *, add_special_tokens: bool) -> list[int]:
        return self.encode_batch([text], add_special_tokens=add_special_tokens)[0]

    def encode_with_offsets(
        self, text: str, *, add_special_tokens: bool
    ) -> tuple[list[int], Offsets]:
        """Also (start, end) characters of each token in `text`."""
        # Unlike `encode`, the call for several texts releases the interpreter lock.
        with _panics_told():
            (encoding,) = self._backend.encode_batch([text], add_special_tokens=add_special_tokens)
        return list(encoding.ids), list(encoding.offsets)

    def encode_cut_with_offsets(
        self, text: str, num_tokens: int, *, add_special_tokens: bool
    ) -> tuple[list[int], Offsets]:
        """The last tokens of a text, special ones included.

        A tokenizer cuts before it trims the offsets, so those of the first token may differ from
        what they are in the whole.
        """
        with _panics_told():
            (encoding,) = self._unprocessed.encode_batch([text], add_special_tokens=False)
        room = num_tokens - sum(self.num_added) if add_special_tokens else num_tokens
        encoding.truncate(max(room, 0), direction=self.truncation_side)
        encoding = self._backend.post_process(encoding, None, add_special_tokens)
        return list(encoding.ids), list(encoding.offsets)

    def encode_batch(self, texts: Sequence[str], *, add_special_tokens: bool) -> list[list[int]]:
        """Raise ApiError for what no expression of the tokenizer can be applied to."""
        with _panics_told():
            if self._ranked is None:
                return self._encode_whole(texts, add_special_tokens)
            encoded = self._encode_ranked(self._ranked, texts)
        if not add_special_tokens or self.num_added == (0, 0):
            return encoded
        before, behind = self._added
        return [[*before, *ids, *behind] for ids in encoded]

    def _encode_ranked(self, ranked: RankedBpe, texts: Sequence[str]) -> list[list[int]]:
        found = [
            self._encode_in_pieces(ranked, text) if len(text) > MAX_CHARS else ranked.encode(text)
            for text in texts
        ]
        left = [text for text, ids in zip(texts, found, strict=True) if ids is None]
        whole = iter(self._encode_whole(left, False) if left else ())
        return [next(whole) if ids is None else ids for ids in found]

    def _encode_in_pieces(self, ranked: RankedBpe, text: str) -> list[int]:
        """The other library takes hundreds of bytes for a character: it gets little at a time."""
        ids: list[int] = []
        for piece in ranked.pieces(text):
            if len(piece) > MAX_PIECE_CHARS:
                raise ApiError(_TOO_LONG_A_RUN)
            ids += ranked.encode(piece) or self._encode_whole([piece], False)[0]
        return ids

    def _encode_whole(self, texts: Sequence[str], add_special_tokens: bool) -> list[list[int]]:
        # The only call that looks for no offsets: a sixth less work, for one text, too.
        encodings = self._backend.encode_batch_fast(
            list(texts), add_special_tokens=add_special_tokens
        )
        return [encoding.ids for encoding in encodings]

    # --- ids to text

    def decode(self, ids: Sequence[int], *, skip_special_tokens: bool = False) -> str:
        """Ids outside the vocabulary decode to nothing."""
        text: str = self._backend.decode(list(ids), skip_special_tokens=skip_special_tokens)
        if self._files.clean_up_spaces:
            for old, new in _CLEAN_UP:
                text = text.replace(old, new)
        return text

    def decode_stream(
        self, ids: Sequence[int] = (), *, skip_special_tokens: bool = False
    ) -> DecodeStream:
        """Incremental decoding, primed with ids already seen; see `step`."""
        return DecodeStream(ids=list(ids), skip_special_tokens=skip_special_tokens)

    def step(self, stream: DecodeStream, ids: int | list[int]) -> str | None:
        """The text that these ids complete, or None while a character is unfinished."""
        text: str | None = stream.step(self._backend, ids)
        return text

    def piece(self, token_id: int) -> str | None:
        """The vocabulary's own writing of a token; None outside the vocabulary."""
        piece: str | None = self._backend.id_to_token(token_id)
        return piece

    def pieces_to_text(self, pieces: Sequence[str]) -> str:
        """Join pieces as the decoder does; ids are not looked at and nothing is left out."""
        if self._decoder is None:
            return " ".join(pieces)
        text: str = self._decoder.decode(list(pieces))
        return text

    def token_id(self, piece: str) -> int | None:
        token: int | None = self._backend.token_to_id(piece)
        return token

    # --- facts

    @property
    def bos_id(self) -> int | None:
        return self._named_id("bos_token")

    @property
    def eos_id(self) -> int | None:
        return self._named_id("eos_token")

    @property
    def model_max_length(self) -> int | None:
        return self._files.model_max_length

    @cached_property
    def space_marker(self) -> str | None:
        """What stands for a space at the start of a piece, where `decode` strips it there."""
        return _space_marker(self._files.backend.get("pre_tokenizer"))

    @cached_property
    def _unprocessed(self) -> Any:
        """A copy that adds nothing and trims no offsets."""
        copy = tokenizers.Tokenizer.from_str(self._backend.to_str())
        copy.post_processor = None
        return copy

    @cached_property
    def num_added(self) -> tuple[int, int]:
        """Tokens that `add_special_tokens` puts before and behind any text."""
        before, behind = self._added
        return len(before), len(behind)

    @cached_property
    def _added(self) -> tuple[list[int], list[int]]:
        plain = list(self._backend.encode("a", add_special_tokens=False).ids)
        full = list(self._backend.encode("a", add_special_tokens=True).ids)
        before = next((i for i in range(len(full)) if full[i : i + len(plain)] == plain), len(full))
        return full[:before], full[before + len(plain) :]

    @cached_property
    def max_chars_per_token(self) -> int:
        """Length of the longest piece: more characters than this per token cannot be."""
        return max(map(len, self._backend.get_vocab(with_added_tokens=True)), default=1)

    @cached_property
    def vocabulary(self) -> Mapping[str, int]:
        vocabulary: dict[str, int] = self._backend.get_vocab(with_added_tokens=True)
        return vocabulary

    def _named_id(self, name: str) -> int | None:
        text = self.special_tokens.get(name)
        return None if text is None else self.token_id(text)


@contextmanager
def _panics_told() -> Iterator[None]:
    """The library panics where an expression gives up, and nobody expects its BaseException."""
    try:
        yield
    except BaseException as error:
        if type(error).__name__ != "PanicException":
            raise
        raise ApiError(_TOO_LONG_A_RUN) from None


def require_tokens(tokenizer: Tokenizer, pieces: Iterable[str], whose: str) -> None:
    """Raise SettingsError where a piece is no token, though `whose` work depends on it."""
    for piece in pieces:
        if tokenizer.token_id(piece) is None:
            raise SettingsError(f"the tokenizer has no {piece} token, which {whose} needs")


def _build(files: TokenizerFiles) -> Any:
    try:
        backend = tokenizers.Tokenizer.from_buffer(orjson.dumps(files.backend))
    except Exception as error:  # the library raises bare Exception for a bad file
        raise SettingsError(f"tokenizer.json cannot be used: {error}") from None
    for token in files.added:
        _add(backend, token)
    return backend


def _add(backend: Any, token: Mapping[str, Any]) -> None:
    added = tokenizers.AddedToken(**token)
    if token.get("special"):
        backend.add_special_tokens([added])
    else:
        backend.add_tokens([added])


def _without_vocabulary(backend: Mapping[str, Any]) -> dict[str, Any]:
    model = {key: backend["model"].get(key) for key in ("type", "dropout")}
    return {key: backend.get(key) for key in ("normalizer", "pre_tokenizer")} | {"model": model}


def _is_plain(backend: Mapping[str, Any], added: Iterable[Any]) -> bool:
    greedy = any(t.lstrip or t.rstrip or t.normalized or t.single_word for t in added)
    normalizer = (backend["normalizer"] or {}).get("type")
    model = backend["model"]
    return (
        not greedy
        and normalizer in (None, "NFC", "NFD", "NFKC", "NFKD")
        and model["type"] == "BPE"
        and not model["dropout"]
        and _adds_no_prefix(backend["pre_tokenizer"] or {})
    )


def _adds_no_prefix(step: Mapping[str, Any]) -> bool:
    kind = step.get("type")
    if kind == "Sequence":
        return all(_adds_no_prefix(inner) for inner in step["pretokenizers"])
    return kind == "Split" or (kind == "ByteLevel" and not step.get("add_prefix_space"))


def _rename(files: TokenizerFiles, backend: Any, names: Mapping[str, str]) -> TokenizerFiles:
    """Rewrite the complete file, so that every token keeps its id."""
    whole = orjson.loads(backend.to_str())
    for token in whole["added_tokens"]:
        token["content"] = names.get(token["content"], token["content"])
    vocabulary = whole["model"]["vocab"]
    if isinstance(vocabulary, dict):
        whole["model"]["vocab"] = {names.get(key, key): n for key, n in vocabulary.items()}
    return TokenizerFiles(
        backend=whole,
        added=(),
        special_tokens={k: names.get(text, text) for k, text in files.special_tokens.items()},
        extra_special_tokens=tuple(names.get(text, text) for text in files.extra_special_tokens),
        chat_templates=files.chat_templates,
        processor_template=files.processor_template,
        model_max_length=files.model_max_length,
        clean_up_spaces=files.clean_up_spaces,
    )


def _space_marker(pre_tokenizer: Mapping[str, Any] | None) -> str | None:
    """Only Metaspace has one, alone or first of its kind in a sequence."""
    if not pre_tokenizer:
        return None
    steps = pre_tokenizer.get("pretokenizers", [pre_tokenizer])
    marks = (step.get("replacement", "▁") for step in steps if step.get("type") == "Metaspace")
    return next(marks, None)
