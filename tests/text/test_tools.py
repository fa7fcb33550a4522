import json
from typing import Any, ClassVar

import pytest

from runtime.errors import SettingsError
from schemas.errors import ApiError
from schemas.sampling import StructuredOutputs
from workers.text.tools import ToolWishes, adjusted, tool_parser_rules

FREE = {"name": "free", "parameters": {"type": "object", "properties": {"a": {}}}}
STRICT = {"name": "strict", "parameters": {"type": "object"}, "strict": True}


def wishes(**fields: Any) -> ToolWishes:
    return ToolWishes(**{"functions": [FREE, STRICT], "choice": "required", **fields})


def format_of(given: ToolWishes) -> Any:
    assert given.structured_outputs is not None
    assert given.structured_outputs.structural_tag is not None
    return json.loads(given.structured_outputs.structural_tag)["format"]


def test_required_calls_are_held_to_the_parsers_form() -> None:
    form = format_of(adjusted(wishes(), tool_parser_rules("hermes"), None))

    assert form["type"] == "tags_with_separator"
    assert form["at_least_one"] is True
    assert [tag["begin"][:40] for tag in form["tags"][:2]] == [
        '<tool_call>\n{"name": "free", "arguments"',
        '<tool_call>{"name": "free", "arguments":',
    ]


def test_only_strict_tools_are_held_to_their_schema() -> None:
    form = format_of(adjusted(wishes(), tool_parser_rules("hermes"), None))

    schemas = [tag["content"]["json_schema"] for tag in form["tags"]]
    assert schemas == [True, True, STRICT["parameters"], STRICT["parameters"]]


def test_the_server_may_hold_every_tool_to_its_schema() -> None:
    form = format_of(adjusted(wishes(), tool_parser_rules("llama3_json"), "parameter"))

    assert form["tags"][0]["content"]["json_schema"] == FREE["parameters"]


def test_a_free_choice_of_free_tools_is_not_constrained() -> None:
    given = wishes(functions=[FREE], choice="auto")

    assert adjusted(given, tool_parser_rules("hermes"), None).structured_outputs is None


def test_one_call_at_a_time_needs_a_grammar() -> None:
    given = wishes(functions=[FREE], choice="auto", is_parallel=False)

    form = format_of(adjusted(given, tool_parser_rules("hermes"), None))

    assert form["stop_after_first"] is True


def test_a_schema_of_the_request_stands_beside_the_calls() -> None:
    given = wishes(choice="auto", structured_outputs=StructuredOutputs(json_object=True))

    form = format_of(adjusted(given, tool_parser_rules("hermes"), None))

    assert form["type"] == "or"
    assert form["elements"][1]["json_schema"] == {"type": "object"}


def test_a_tag_of_the_request_is_completed() -> None:
    tag = {"type": "structural_tag", "format": {"type": "star", "content": {"type": "any_text"}}}
    given = wishes(
        choice="auto", structured_outputs=StructuredOutputs(structural_tag=json.dumps(tag))
    )

    form = format_of(adjusted(given, tool_parser_rules("hermes"), None))

    content = {"type": "any_text", "excludes": [], "max_tokens": None, "max_chars": None}
    assert form["elements"][1] == {"type": "star", "content": content}


class TestGlm:
    CITY: ClassVar[dict[str, Any]] = {
        "name": "f",
        "parameters": {
            "type": "object",
            "properties": {"a": {"type": ["integer", "string"]}, "b": {"enum": ["x", 1]}},
        },
    }

    def form(self, function: dict[str, Any], **fields: Any) -> Any:
        given = wishes(functions=[function], **{"choice": "auto", **fields})
        return format_of(adjusted(given, tool_parser_rules("glm45"), None))

    def test_calls_have_their_form_even_where_nothing_is_strict(self) -> None:
        form = self.form(self.CITY)

        assert form["triggers"] == ["<tool_call>"]
        assert "<tool_call>" not in form["excludes"]
        pairs = form["tags"][0]["content"]["content"]["elements"]
        assert [pair["elements"][0]["value"] for pair in pairs] == [
            "<arg_key>a</arg_key><arg_value>", "<arg_key>b</arg_key><arg_value>",
        ]  # fmt: skip
        kinds = [e["type"] for pair in pairs for e in pair["elements"][1]["elements"]]
        assert kinds == ["json_schema", "any_text", "const_string", "const_string"]

    def test_a_strict_tool_is_held_to_its_schema(self) -> None:
        content = self.form({**self.CITY, "strict": True})["tags"][0]["content"]

        assert content["style"] == "glm_xml"
        assert content["json_schema"] == self.CITY["parameters"]

    def test_schemas_that_say_more_than_keys_are_left_to_the_model(self) -> None:
        function = {"name": "f", "parameters": {"properties": {"a": {}}, "anyOf": []}}

        assert self.form(function)["tags"][0]["content"]["json_schema"] is True

    def test_the_server_may_leave_calls_free(self) -> None:
        given = wishes(functions=[self.CITY], choice="auto")

        assert adjusted(given, tool_parser_rules("glm45"), "auto").structured_outputs is None


def test_a_forced_tool_must_be_one() -> None:
    given = wishes(functions=[FREE, FREE], choice=None, forced="free")

    with pytest.raises(ApiError, match="exactly one"):
        adjusted(given, tool_parser_rules("hermes"), None)


def test_parsers_without_grammar_read_plain_json() -> None:
    result = adjusted(wishes(is_parallel=False), tool_parser_rules("pythonic"), None)

    assert result.structured_outputs is not None
    schema = result.structured_outputs.json_
    assert isinstance(schema, dict)
    assert schema["maxItems"] == 1
    assert [call["properties"]["name"]["enum"] for call in schema["items"]["anyOf"]] == [
        ["free"],
        ["strict"],
    ]


def test_definitions_of_schemas_are_hoisted() -> None:
    function = {"name": "f", "parameters": {"$defs": {"A": {"type": "string"}}, "type": "object"}}

    result = adjusted(wishes(functions=[function]), tool_parser_rules("pythonic"), None)

    assert result.structured_outputs is not None
    schema = result.structured_outputs.json_
    assert isinstance(schema, dict)
    assert schema["$defs"] == {"A": {"type": "string"}}
    assert "$defs" in function["parameters"]  # what the request said stays
    assert result.functions == [{"name": "f", "parameters": {"type": "object"}}]


@pytest.mark.parametrize(
    ("choice", "forced", "most", "names"),
    [("required", None, None, ["free", "bare"]), (None, "free", 1, ["free"])],
)
def test_mistral_lists_calls_however_they_are_asked_for(
    choice: str | None, forced: str | None, most: int | None, names: list[str]
) -> None:
    given = wishes(functions=[FREE, {"name": "bare"}], choice=choice, forced=forced)

    result = adjusted(given, tool_parser_rules("mistral"), None).structured_outputs

    assert result is not None
    assert isinstance(result.json_, dict)
    calls = result.json_["items"]["anyOf"]
    assert result.json_.get("maxItems") == most
    assert [call["properties"]["name"]["enum"][0] for call in calls] == names
    assert calls[0]["properties"]["arguments"] == FREE["parameters"]
    assert calls[-1]["required"] == ["name", "arguments"]


def test_deepseek_writes_its_calls_into_one_section() -> None:
    rules = tool_parser_rules("deepseek_v3")

    section = format_of(adjusted(wishes(), rules, None))
    forced = format_of(adjusted(wishes(choice=None, forced="free"), rules, None))

    call = "<｜tool▁call▁begin｜>function<｜tool▁sep｜>free\n```json\n"
    assert section["begin"] == "<｜tool▁calls▁begin｜>"
    assert section["content"]["separator"] == "\n"
    assert section["content"]["tags"][0]["begin"] == call
    assert forced["begin"] == section["begin"] + call
    assert forced["end"] == "\n```<｜tool▁call▁end｜><｜tool▁calls▁end｜>"


def test_a_free_section_of_calls_opens_at_its_mark() -> None:
    form = format_of(adjusted(wishes(choice="auto"), tool_parser_rules("deepseek_v31"), None))

    assert form["triggers"] == ["<｜tool▁calls▁begin｜>"]
    assert form["tags"][0]["content"]["tags"][0]["begin"].endswith("free<｜tool▁sep｜>")


def test_gemma4_calls_are_held_to_nothing() -> None:
    assert adjusted(wishes(), tool_parser_rules("gemma4"), None).structured_outputs is None


def test_mistral_leaves_a_requests_own_constraint() -> None:
    regex = StructuredOutputs(regex="a")
    given = wishes(structured_outputs=regex, is_constrained=True)

    assert adjusted(given, tool_parser_rules("mistral"), None).structured_outputs == regex


@pytest.mark.parametrize(
    ("name", "fields", "expected"),
    [
        ("hermes", {}, False),
        ("hermes", {"choice": "none"}, None),
        ("hermes", {"functions": []}, None),
        ("llama3_json", {}, None),
        ("qwen3_coder", {"functions": []}, False),
        ("granite", {"choice": "none"}, False),
        ("granite4", {"choice": "none"}, None),
        ("granite4", {}, False),
        ("seed_oss", {"functions": []}, False),
        ("gemma4", {"choice": "none"}, False),
        ("deepseek_v3", {}, None),
        ("olmo3", {}, None),
    ],
)
def test_marks_of_calls_are_not_left_out(
    name: str, fields: dict[str, Any], expected: bool | None
) -> None:
    result = adjusted(wishes(**fields), tool_parser_rules(name), None)

    assert result.skip_special_tokens is expected


def test_an_unknown_parser_is_refused() -> None:
    with pytest.raises(SettingsError, match="known are"):
        tool_parser_rules("nope")
