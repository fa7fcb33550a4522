"""Keeps control tokens that a template wrote apart from the same text typed by a caller.

The template's own constants are rewritten to private spellings that no caller can guess, and the
tokenizer that reads the rendered text knows these tokens only under their private spelling. So a
caller's text never becomes such a token, wherever it stands and however it is split over parts,
and everything else is tokenized as it would be.

Knows no chat and no media.
"""

import re
import secrets
from collections.abc import Callable, Iterable, Mapping
from typing import Self

from jinja2 import nodes

# Egyptian hieroglyphs: without case or normal forms, and printable, so that a template that shows a
# whole message (Python's repr) does not escape them.
_FIRST, _LAST = 0x13000, 0x1342E
_OPEN, _CLOSE = chr(_FIRST), chr(_LAST)
_SECRET_LENGTH = 20

# String methods and filters whose arguments are looked for, not written.
_SEARCHING = {
    "split", "rsplit", "partition", "rpartition", "startswith", "endswith", "removeprefix",
    "removesuffix", "strip", "lstrip", "rstrip", "find", "rfind", "index", "rindex", "count",
    "trim",
}  # fmt: skip


class PrivateTokens:
    """Private spellings of some tokens, new in every process."""

    def __init__(self, texts: Iterable[str]) -> None:
        self._spell({text: _new_spelling() for text in texts})

    @classmethod
    def spelled(cls, spelling: Mapping[str, str]) -> Self:
        """Those of another process, by their texts."""
        tokens = cls(())
        tokens._spell(spelling)
        return tokens

    def _spell(self, spelling: Mapping[str, str]) -> None:
        longest_first = sorted(spelling, key=len, reverse=True)
        self.spelling: Mapping[str, str] = {text: spelling[text] for text in longest_first}
        self._text_of = {private: text for text, private in self.spelling.items()}
        self._spellings = _alternatives(self._text_of)
        self._texts = _alternatives(self.spelling)

    def respelled(self) -> "PrivateTokens":
        """The same tokens under new spellings."""
        return PrivateTokens(self.spelling)

    def __bool__(self) -> bool:
        return bool(self.spelling)

    def hide(self, text: str) -> str:
        """Text of ours: every token in it becomes private."""
        if not self.spelling:
            return text
        return self._texts.sub(lambda found: self.spelling[found[0]], text)

    def reveal(self, text: str) -> str:
        """The text as people and other tokenizers read it."""
        if _OPEN not in text:
            return text
        return self._spellings.sub(lambda found: self._text_of[found[0]], text)

    def moved(self, text: str, others: "PrivateTokens") -> str:
        """The text with these tokens as `others`, of the same texts, spell them."""
        if _OPEN not in text:
            return text
        return self._spellings.sub(lambda found: others.spelling[self._text_of[found[0]]], text)

    def reveal_positions(self, text: str) -> Callable[[int], int]:
        """Where a position of `text` is in `reveal(text)`."""
        found = [(m.end(), len(m[0]) - len(self._text_of[m[0]])) for m in _matches(self, text)]

        def position(index: int) -> int:
            return index - sum(shorter for end, shorter in found if end <= index)

        return position

    def rewrite(self, tree: nodes.Template) -> None:
        """Make the tokens that the template's constants write private, in place."""
        if self.spelling:
            _rewrite(tree, self.hide)


def _matches(tokens: PrivateTokens, text: str) -> Iterable[re.Match[str]]:
    return tokens._spellings.finditer(text) if tokens.spelling else ()


def _new_spelling() -> str:
    middle = (
        chr(_FIRST + 1 + secrets.randbelow(_LAST - _FIRST - 1)) for _ in range(_SECRET_LENGTH)
    )
    return _OPEN + "".join(middle) + _CLOSE


def _alternatives(texts: Iterable[str]) -> re.Pattern[str]:
    return re.compile("|".join(map(re.escape, texts)) or r"(?!)")


def _rewrite(node: nodes.Node, hide: Callable[[str], str]) -> None:
    if isinstance(node, nodes.TemplateData):
        node.data = hide(node.data)
    elif isinstance(node, nodes.Const):
        if isinstance(node.value, str):
            node.value = hide(node.value)
    else:
        for child in _written(node):
            _rewrite(child, hide)


def _written(node: nodes.Node) -> Iterable[nodes.Node]:
    """Children whose constants may end up in the output; the others are compared or looked up."""
    if isinstance(node, nodes.Compare | nodes.Test):
        return ()
    if isinstance(node, nodes.Getitem | nodes.Getattr):
        return (node.node,)
    if isinstance(node, nodes.Filter):
        return _of_call(node, node.name)
    if isinstance(node, nodes.Call) and isinstance(node.node, nodes.Getattr):
        return _of_call(node, node.node.attr)
    return node.iter_child_nodes()


def _of_call(node: nodes.Filter | nodes.Call, name: str) -> Iterable[nodes.Node]:
    target = () if node.node is None else (node.node,)
    if name == "replace":  # the second argument is written
        return (*target, *node.args[1:2])
    if name in _SEARCHING:
        return target
    return node.iter_child_nodes()
