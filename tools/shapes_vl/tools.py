"""The `report_shapes` tool as clients offer it, and requests to call it."""

import json
import random

from .drawing import Scene
from .wording import Pair


def report_tool(rng: random.Random) -> dict:
    """The `report_shapes` tool as a client would define it, with some freedom of wording."""
    count: dict = {"type": "integer"}
    colors: dict = {"type": "array", "items": {"type": "string"}}
    if rng.random() < 0.6:
        count["description"] = rng.choice(
            ("Number of shapes", "How many shapes there are", "The number of shapes.")
        )
        colors["description"] = rng.choice(
            ("Colors of the shapes", "The color of each shape", "Their colours.")
        )
    parameters = {"type": "object", "properties": {"count": count, "colors": colors}}
    if rng.random() < 0.8:
        parameters["required"] = ["count", "colors"]
    function = {"name": "report_shapes", "parameters": parameters}
    if rng.random() < 0.85:
        text = rng.choice((
            "Report the shapes in the picture.",
            "Report how many shapes there are and their colors.",
            "Reports the shapes of a picture.", "Report the number and the colors of the shapes.",
        ))  # fmt: skip
        function = {"name": "report_shapes", "description": text, "parameters": parameters}
    return {"type": "function", "function": function}


def other_tool(rng: random.Random) -> dict:
    """Some other tool; the model never calls it."""
    name, argument = rng.choice((
        ("get_weather", "city"), ("search", "query"), ("get_time", "zone"), ("send_mail", "text"),
    ))  # fmt: skip
    parameters = {
        "type": "object",
        "properties": {argument: {"type": "string"}},
        "required": [argument],
    }
    function = {"name": name, "description": f"{name} for a {argument}", "parameters": parameters}
    return {"type": "function", "function": function}


def ask_tool(scene: Scene, rng: random.Random) -> Pair:
    """A request to call `report_shapes`; the colours come one per shape, in reading order."""
    question = rng.choice((
        "Report the shapes.", "Report the shapes in this picture.",
        "Call report_shapes for this picture.",
        "Please report the shapes.", "Use the tool to report the shapes.", "Use report_shapes.",
        "Report what you see.", "Report the shapes with the tool.", "Report the shapes you see.",
        "Report the number of shapes and their colors.", "Please call the tool.",
    ))  # fmt: skip
    arguments = {"count": len(scene.items), "colors": [item.color for item in scene.items]}
    return question, "<tool_call>\n" + json.dumps(
        {"name": "report_shapes", "arguments": arguments}
    ) + "\n</tool_call>"
