"""Structured output `choice`: which tokens keep the output a beginning of one of the given texts.

Works on bytes, so that a text may be reached by any of its tokenizations. Knows no tensors.
"""

from collections.abc import Collection, Mapping, Sequence


class ChoiceGrammar:
    """One request's constraint; stateless, the output so far is passed in."""

    def __init__(
        self,
        choices: Sequence[str],
        token_bytes: Mapping[int, bytes],
        end_ids: Collection[int],
    ) -> None:
        self._texts = [choice.encode() for choice in choices]
        self._bytes = token_bytes
        self._ends = end_ids
        self._ids: dict[bytes, list[int]] = {}
        for token, data in token_bytes.items():
            if data:
                self._ids.setdefault(data, []).append(token)

    def allowed(self, output: Sequence[int]) -> set[int]:
        """Tokens that may follow; an end token once the output is a whole text."""
        so_far = b"".join(self._bytes.get(token, b"") for token in output)
        rests = [text[len(so_far) :] for text in self._texts if text.startswith(so_far)]
        tokens: set[int] = set()
        for rest in rests:
            if not rest:
                tokens.update(self._ends)
            for end in range(1, len(rest) + 1):
                tokens.update(self._ids.get(rest[:end], ()))
        return tokens
