"""Structured outputs: a constraint compiled once, and which tokens keep an output within it.

The grammars are xgrammar's, as in vLLM (vllm/v1/structured_output/backend_xgrammar.py).
"""

import asyncio
import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import xgrammar
from torch import Tensor

from schemas.errors import ApiError
from schemas.refusals import bad_request
from workers.models.engine.tokens import TextSource

COMPILE_TIMEOUT_S = 10.0
MAX_BYTES = 256 * 1024
"""Of a constraint as it is given."""
CACHE_BYTES = 256 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class Constraint:
    """A compiled grammar, and after which tokens it begins to bind."""

    grammar: xgrammar.CompiledGrammar
    begins_after: frozenset[int] = frozenset()
    """Any of these tokens, which end the reasoning; empty: it binds from the start."""


class Grammars:
    """Compiles constraints for one model; what it has compiled is kept within a bound."""

    def __init__(self, source: TextSource, vocab_size: int, end_ids: Collection[int]) -> None:
        """`end_ids`: tokens that may come once an output is complete."""
        self._source = source
        self._vocab_size = vocab_size
        self._end_ids = list(end_ids)
        self._plain: xgrammar.GrammarCompiler | None = None
        self._full: xgrammar.GrammarCompiler | None = None
        self._turn = asyncio.Semaphore(1)

    async def compile(self, wire: Mapping[str, Any]) -> xgrammar.CompiledGrammar:
        """`wire` is `structured_outputs` of the sampling parameters.

        ApiError 400 for what cannot be compiled, or not within a few seconds.
        """
        if sum(map(_size, wire.values())) > MAX_BYTES:
            raise _refused(f"it has more than {MAX_BYTES} bytes")
        try:
            async with asyncio.timeout(COMPILE_TIMEOUT_S), self._turn:
                return await asyncio.to_thread(self._compile, wire)
        except TimeoutError:
            raise _refused(f"it takes longer than {COMPILE_TIMEOUT_S:g} s to compile") from None

    def _compile(self, wire: Mapping[str, Any]) -> xgrammar.CompiledGrammar:
        try:
            return self._compile_kind({k: v for k, v in wire.items() if v is not None})
        except (RuntimeError, ValueError, TypeError, LookupError, AttributeError) as error:
            raise _refused(_words_of(error)) from error

    def _compile_kind(self, given: Mapping[str, Any]) -> xgrammar.CompiledGrammar:
        spaced = not given.get("disable_any_whitespace")
        separators = None if spaced else (",", ":")
        if "structural_tag" in given:
            return self._structural_tag(given["structural_tag"])
        compiler = self._for_text()
        if "json" in given:
            schema = given["json"]
            text = schema if isinstance(schema, str) else json.dumps(schema)
            return compiler.compile_json_schema(text, any_whitespace=spaced, separators=separators)
        if given.get("json_object"):
            return compiler.compile_json_schema(
                '{"type": "object"}', any_whitespace=spaced, separators=separators
            )
        if "regex" in given:
            return compiler.compile_regex(given["regex"])
        if "choice" in given:
            return compiler.compile_grammar(_one_of(given["choice"]))
        return compiler.compile_grammar(given["grammar"])

    def _structural_tag(self, tag: str) -> xgrammar.CompiledGrammar:
        """Its markup may be special tokens, which no other constraint may have."""
        compiler, parsed = self._for_markup(), json.loads(tag)
        if "structures" not in parsed:
            return compiler.compile_structural_tag(tag)
        items = [
            xgrammar.StructuralTagItem(begin=s["begin"], schema=json.dumps(s["schema"]), end=s["end"])
            for s in parsed["structures"]
        ]
        return compiler.compile_structural_tag(items, parsed["triggers"])

    def _for_text(self) -> xgrammar.GrammarCompiler:
        if self._plain is None:
            self._plain = self._compiler(self._source.token_bytes)
        return self._plain

    def _for_markup(self) -> xgrammar.GrammarCompiler:
        if self._full is None:
            self._full = self._compiler(self._source.all_token_bytes)
        return self._full

    def _compiler(self, token_bytes: Mapping[int, bytes]) -> xgrammar.GrammarCompiler:
        """A token without bytes is never allowed."""
        info = xgrammar.TokenizerInfo(
            [token_bytes.get(token, b"") for token in range(self._vocab_size)],
            xgrammar.VocabType.RAW,
            vocab_size=self._vocab_size,
            stop_token_ids=self._end_ids,
        )
        return xgrammar.GrammarCompiler(info, max_threads=1, cache_limit_bytes=CACHE_BYTES)


def _size(value: Any) -> int:
    """UTF-8 bytes of a text, or of the JSON of anything else."""
    text = value if isinstance(value, str) else json.dumps(value)
    return len(text.encode("utf-8", "replace"))


def _one_of(texts: Sequence[str]) -> str:
    """EBNF of a choice between literal texts. JSON's escapes are also those of xgrammar's EBNF."""
    return "root ::= " + " | ".join(json.dumps(text) for text in texts)


def _words_of(error: Exception) -> str:
    """Without the place in the library's source that its messages begin with."""
    words = str(error)
    _, is_placed, rest = words.partition(".cc:")
    return (rest.partition(": ")[2] if is_placed else words).strip()[:500]


def _refused(why: str) -> ApiError:
    return bad_request(f"Grammar error: {why}", "structured_outputs")


class Matchers:
    """One request's choices, each at its own place in the grammar."""

    def __init__(self, constraint: Constraint, num_choices: int) -> None:
        self._matchers = [
            xgrammar.GrammarMatcher(constraint.grammar) for _ in range(num_choices)
        ]
        self._begins_after = constraint.begins_after
        self._is_bound = [not constraint.begins_after] * num_choices
        self._vocab_size = constraint.grammar.tokenizer_info.vocab_size

    def mask(self, logits: Tensor, choices: Sequence[int]) -> Tensor:
        """What the grammar forbids is never seen, not even by log-probabilities."""
        masks = xgrammar.allocate_token_bitmask(len(choices), self._vocab_size)
        for row, choice in enumerate(choices):
            if self._is_binding(choice):
                self._matchers[choice].fill_next_token_bitmask(masks, row)
        logits = logits.float().clone()
        xgrammar.apply_token_bitmask_inplace(logits, masks.to(logits.device))
        return logits

    def accept(self, choice: int, token: int) -> None:
        if self._is_binding(choice):
            self._matchers[choice].accept_token(token)
        self._is_bound[choice] |= token in self._begins_after

    def _is_binding(self, choice: int) -> bool:
        return self._is_bound[choice] and not self._matchers[choice].is_terminated()
