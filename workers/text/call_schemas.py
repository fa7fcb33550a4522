"""JSON schemas that hold a model to calls written as plain JSON, where no grammar does.

The result is plain data. Knows no request.
"""

from collections.abc import Sequence
from typing import Any

Function = dict[str, Any]


def parameters(function: Function) -> dict[str, Any]:
    """Arguments alone: of a call whose name is settled."""
    return function.get("parameters") or {"type": "object", "properties": {}}


def calls(functions: Sequence[Function], *, is_parallel: bool) -> dict[str, Any]:
    """A list of calls; definitions that the tools' schemas share move to its top."""
    definitions: dict[str, Any] = {}
    choices = []
    for function in functions:
        arguments = dict(parameters(function))
        definitions |= arguments.pop("$defs", {})
        choices.append(
            {
                "properties": {"name": _name(function), "parameters": arguments},
                "required": ["name", "parameters"],
            }
        )
    schema: dict[str, Any] = {"type": "array", "minItems": 1}
    schema["items"] = {"type": "object", "anyOf": choices}
    if not is_parallel:
        schema["maxItems"] = 1
    if definitions:
        schema["$defs"] = definitions
    return schema


def without_definitions(function: Function) -> Function:
    """What vLLM leaves of a tool whose definitions it moved into a schema of all calls."""
    given = function.get("parameters")
    if not given or "$defs" not in given:
        return function
    rest = {key: value for key, value in given.items() if key != "$defs"}
    return {**function, "parameters": rest}


def mistral(functions: Sequence[Function], forced: str | None) -> dict[str, Any]:
    """A list of calls in Mistral's words, of one where its name is settled."""
    choices = [
        {
            "type": "object",
            "properties": {
                "name": _name(f),
                "arguments": f.get("parameters") or {"type": "object"},
            },
            "required": ["name", "arguments"],
        }
        for f in functions
        if forced in (None, f["name"])
    ]
    schema: dict[str, Any] = {"type": "array", "minItems": 1}
    if forced is not None:
        schema["maxItems"] = 1
    schema["items"] = {"type": "object", "anyOf": choices}
    return schema


def _name(function: Function) -> dict[str, Any]:
    return {"type": "string", "enum": [function["name"]]}
