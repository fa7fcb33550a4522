"""Tells from a chat template's syntax tree whether it wants message content as parts or as text.

"openai": the template loops over a message's content; "string": it prints it (01-render §4.4).
Knows no request and renders nothing.
"""

from collections import deque
from collections.abc import Iterator
from typing import Literal

from jinja2 import nodes

ContentFormat = Literal["string", "openai"]


def detect_content_format(tree: nodes.Template) -> ContentFormat:
    return "openai" if _loops_over_content(tree) else "string"


def _loops_over_content(tree: nodes.Template) -> bool:
    messages = set(_message_names(tree))
    in_macros, bound = _macro_bindings(tree, messages)
    for loop in tree.find_all(nodes.For):
        if any(_reaches(loop.iter, name, "content") for name in messages):
            return True
        if not isinstance(loop.iter, nodes.Name):
            continue
        if loop.iter.name in bound.get(id(loop), ()):
            return True
        if id(loop) not in in_macros and loop.iter.name == "content":
            return True
    return False


def _message_names(tree: nodes.Template) -> Iterator[str]:
    """Loop variables that are one message each."""
    lists = list(_aliases(tree, "messages"))
    for loop in tree.find_all(nodes.For):
        is_over_messages = any(_reaches(loop.iter, name) for name in lists)
        if is_over_messages and isinstance(loop.target, nodes.Name):
            yield loop.target.name


def _aliases(tree: nodes.Template, name: str) -> Iterator[str]:
    """The variable and everything it, or a slice of it, is assigned to (`ns.rest` included)."""
    seen = {name}
    queue = deque(seen)
    while queue:
        current = queue.popleft()
        yield current
        for assign in tree.find_all(nodes.Assign):
            new = set(_assigned(assign, current)) - seen
            seen |= new
            queue += new


def _assigned(assign: nodes.Assign, name: str) -> Iterator[str]:
    target, value = assign.target, assign.node
    if isinstance(target, nodes.Name):
        if _reaches(value, name):
            yield target.name
        if (
            isinstance(value, nodes.Call)
            and isinstance(value.node, nodes.Name)
            and value.node.name == "namespace"
        ):
            for keyword in value.kwargs:
                if isinstance(keyword, nodes.Keyword) and _reaches(keyword.value, name):
                    yield f"{target.name}.{keyword.key}"
    elif isinstance(target, nodes.NSRef) and _reaches(value, name):
        yield f"{target.name}.{target.attr}"


def _reaches(node: nodes.Node | None, name: str, key: str | None = None) -> bool:
    """Whether an expression is the variable (or its `key`), filtered, tested or sliced."""
    while True:
        if isinstance(node, nodes.Filter | nodes.Test) or (
            isinstance(node, nodes.Getitem) and isinstance(node.arg, nodes.Slice)
        ):
            node = node.node
        else:
            break
    if node is None:
        return False
    return _is_key(node, name, key) if key else _is_variable(node, name)


def _is_variable(node: nodes.Node, name: str) -> bool:
    if isinstance(node, nodes.Name):
        return node.ctx == "load" and node.name == name
    if isinstance(node, nodes.Getattr) and "." in name:
        base, _, attribute = name.rpartition(".")
        return node.attr == attribute and _is_variable(node.node, base)
    return False


def _is_key(node: nodes.Node, name: str, key: str) -> bool:
    if isinstance(node, nodes.Getitem):
        is_key = isinstance(node.arg, nodes.Const) and node.arg.value == key
        return is_key and _is_variable(node.node, name)
    if isinstance(node, nodes.Getattr):
        return node.attr == key and _is_variable(node.node, name)
    return False


def _macro_bindings(
    tree: nodes.Template, messages: set[str]
) -> tuple[set[int], dict[int, set[str]]]:
    """Loops inside macros, and which of the macro's parameters a message's content is passed to."""
    calls = [call for call in tree.find_all(nodes.Call) if isinstance(call.node, nodes.Name)]
    in_macros: set[int] = set()
    bound: dict[int, set[str]] = {}
    for macro in tree.find_all(nodes.Macro):
        names = {
            name
            for call in calls
            if isinstance(call.node, nodes.Name) and call.node.name == macro.name
            for name in _content_parameters(macro, call, messages)
        }
        for loop in macro.find_all(nodes.For):
            in_macros.add(id(loop))
            bound.setdefault(id(loop), set()).update(names)
    return in_macros, bound


def _content_parameters(macro: nodes.Macro, call: nodes.Call, messages: set[str]) -> Iterator[str]:
    parameters = [argument.name for argument in macro.args]
    given = list(zip(parameters, call.args, strict=False))
    given += [
        (keyword.key, keyword.value)
        for keyword in call.kwargs
        if isinstance(keyword, nodes.Keyword) and keyword.key in parameters
    ]
    for name, argument in given:
        if any(_reaches(argument, message, "content") for message in messages):
            yield name
