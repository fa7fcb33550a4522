from typing import Any

import pytest

from schemas.errors import ApiError
from workers.render.chat import MediaRules, read_conversation, without_developer_role
from workers.render.parts import MediumPart, ReferencePart, TextPart, read_part

RULES = MediaRules(
    limits={"image": 2, "video": 0, "audio": 0},
    max_limits={"image": 9, "video": 0, "audio": 9},
    placeholder=lambda modality, index: f"<{modality}>",
)
IMAGE = {"type": "image_url", "image_url": {"url": "u"}}


def text_of(*content: Any, rules: MediaRules = RULES, role: str = "user") -> Any:
    messages = [{"role": role, "content": list(content)}]
    return read_conversation(messages, "string", rules).messages[0]["content"]


def parts_of(*content: Any, role: str = "user") -> Any:
    messages = [{"role": role, "content": list(content)}]
    return read_conversation(messages, "openai", RULES).messages[0]["content"]


class TestParts:
    @pytest.mark.parametrize(
        "part",
        [
            {"type": "text", "text": "x"},
            {"type": "input_text", "text": "x"},
            {"type": "output_text", "text": "x"},
            {"type": "refusal", "refusal": "x"},
            {"type": "thinking", "thinking": "x"},
            "x",
        ],
    )
    def test_text_comes_in_many_forms(self, part: Any) -> None:
        assert read_part(part) == TextPart("x")

    def test_text_that_is_null_is_left_out(self) -> None:
        assert read_part({"type": "text", "text": None}) is None

    def test_unknown_keys_stay_for_the_template(self) -> None:
        part = {"type": "text", "text": "x", "cache_control": {"a": 1}, "uuid": None}

        assert read_part(part) == TextPart("x", {"cache_control": {"a": 1}})

    def test_references_are_passed_on(self) -> None:
        assert read_part({"type": "tool_reference", "name": "f"}) == ReferencePart("f")

    @pytest.mark.parametrize(
        ("part", "modality", "form", "param", "source", "uuid"),
        [
            (IMAGE, "image", "url", "image_url", "u", None),
            ({"type": "video_url", "video_url": {"url": "u"}},
             "video", "url", "video_url", "u", None),
            ({"image_url": "u"}, "image", "url", "image_url", "u", None),
            (IMAGE | {"uuid": 5}, "image", "url", "image_url", "u", "5"),
            ({"type": "image_url", "image_url": None, "uuid": "a"},
             "image", "url", "image_url", None, "a"),
            ({"type": "input_image", "image_url": "u", "detail": "low"},
             "image", "url", "image_url", "u", None),
            ({"type": "image_embeds", "image_embeds": "b"},
             "image", "embeds", "image_embeds", "b", None),
            ({"type": "input_audio", "input_audio": {"data": "QQ", "format": "wav"}},
             "audio", "data", "input_audio", "data:audio/wav;base64,QQ", None),
        ],
    )  # fmt: skip
    def test_media_are_found(
        self, part: Any, modality: str, form: str, param: str, source: Any, uuid: str | None
    ) -> None:
        read = read_part(part)

        assert isinstance(read, MediumPart)
        (medium,) = read.media
        assert (modality, form, param, source, uuid) == (
            medium.modality, medium.form, medium.param, medium.source, medium.uuid,
        )  # fmt: skip

    def test_a_video_may_bring_the_embeddings_of_its_sound(self) -> None:
        read = read_part({"type": "video_embeds", "video_embeds": "v", "audio_embeds": "a"})

        assert isinstance(read, MediumPart)
        assert [medium.param for medium in read.media] == ["video_embeds", "audio_embeds"]

    @pytest.mark.parametrize(
        ("part", "param"),
        [
            ({"type": "image_url", "image_url": "u"}, None),
            ({"type": "image_url", "image_url": {"url": 5}}, None),
            ({"type": "image_url", "image_url": {"url": "u", "detail": "x"}}, None),
            ({"type": "input_image", "image_url": "u"}, None),
            ({"type": "hologram"}, "type"),
            ({"type": 5}, "type"),
            ({}, "type"),
            ({"type": "prompt_embeds", "data": "x"}, "prompt_embeds"),
            (5, None),
        ],
    )
    def test_everything_else_is_refused(self, part: Any, param: str | None) -> None:
        with pytest.raises(ApiError) as caught:
            read_part(part)

        assert (caught.value.status, caught.value.param) == (400, param)


class TestPlacement:
    def test_text_parts_are_joined_without_the_empty_ones(self) -> None:
        assert text_of("a", "", "b") == "a\nb"

    def test_placeholders_come_first_and_equal_ones_together(self) -> None:
        assert text_of("a", IMAGE, "b", IMAGE) == "<image>\n<image>\na\nb"

    def test_placeholders_stay_in_place_where_that_is_set_up(self) -> None:
        rules = MediaRules(RULES.limits, RULES.max_limits, RULES.placeholder, interleave=True)

        assert text_of("a", IMAGE, "b", rules=rules) == "a\n<image>\nb"

    def test_parts_keep_their_order(self) -> None:
        assert parts_of("a", IMAGE, "") == [
            {"type": "text", "text": "a"},
            {"type": "image"},
            {"type": "text", "text": ""},
        ]

    def test_a_changing_header_line_is_dropped_from_system_messages(self) -> None:
        header = "x-anthropic-billing-header: 1"

        assert text_of(f"{header}\nrest", header, role="system") == "rest"
        assert text_of(f"{header}\nrest") == f"{header}\nrest"

    def test_tool_results_of_text_parts_become_one_string(self) -> None:
        assert parts_of("a", "b", role="tool") == "a\nb"
        assert parts_of("a", {"type": "tool_reference", "name": "f"}, role="tool") == [
            {"type": "text", "text": "a"},
            {"type": "tool_reference", "name": "f"},
        ]


class TestLimits:
    @pytest.mark.parametrize(
        ("parts", "param", "message"),
        [
            ([IMAGE] * 3, "image", "At most 2 image.*Set `--limit-mm-per-prompt`"),
            (
                [{"type": "video_url", "video_url": {"url": "u"}}],
                "video",
                r"At most 0 video\(s\).*",
            ),
            ([{"type": "image_embeds", "image_embeds": "x"}], "image_embeds", "--enable-mm-embeds"),
        ],
    )
    def test_refusals_name_the_field(self, parts: list[Any], param: str, message: str) -> None:
        with pytest.raises(ApiError, match=message) as caught:
            text_of(*parts)

        assert caught.value.param == param

    def test_a_text_model_takes_no_media(self) -> None:
        with pytest.raises(ApiError, match="not a multimodal model"):
            text_of(IMAGE, rules=MediaRules())

    def test_embeddings_do_not_mix_with_pictures(self) -> None:
        rules = MediaRules(RULES.limits, RULES.max_limits, RULES.placeholder, takes_embeds=True)

        with pytest.raises(ApiError, match="Mixing") as caught:
            text_of(IMAGE, {"type": "image_embeds", "image_embeds": "x"}, rules=rules)

        assert caught.value.param == "image_embeds"


class TestHistory:
    @pytest.mark.parametrize(
        ("arguments", "expected"),
        [
            ('{"a": 1}', {"a": 1}),
            ({"a": 1}, {"a": 1}),
            ("", {}),
            ("not json", {}),
            ("[1]", {}),
            (None, {}),
            ("[" * 100_000, {}),
        ],
    )
    def test_arguments_are_a_mapping(self, arguments: Any, expected: Any) -> None:
        call = {"id": "1", "type": "function", "function": {"name": "f", "arguments": arguments}}

        message = self.read({"role": "assistant", "content": None, "tool_calls": [call]})

        assert message["tool_calls"][0]["function"]["arguments"] == expected

    def test_no_calls_are_none_at_all(self) -> None:
        assert "tool_calls" not in self.read({"role": "assistant", "tool_calls": []})

    def test_reasoning_goes_by_both_names(self) -> None:
        message = self.read({"role": "assistant", "content": "a", "reasoning": "r"})

        assert (message["reasoning"], message["reasoning_content"]) == ("r", "r")

    @pytest.mark.parametrize("call", [5, {"type": "custom"}, {"type": "function", "function": 5}])
    def test_calls_of_other_kinds_are_refused(self, call: Any) -> None:
        with pytest.raises(ApiError) as caught:
            self.read({"role": "assistant", "tool_calls": [call]})

        assert caught.value.param == "tool_calls"

    def test_the_request_is_not_changed(self) -> None:
        call = {"id": "1", "type": "function", "function": {"name": "f", "arguments": "{}"}}
        given = {"role": "assistant", "content": "a", "tool_calls": [call]}

        self.read(given)

        assert call["function"] == {"name": "f", "arguments": "{}"}

    def read(self, message: dict[str, Any]) -> dict[str, Any]:
        return read_conversation([message], "string", RULES).messages[0]


class TestDeveloper:
    def test_becomes_the_one_system_message_at_the_front(self) -> None:
        messages = [
            {"role": "user", "content": "u"},
            {"role": "developer", "content": [{"type": "text", "text": "d"}], "tools": None},
            {"role": "system", "content": "s"},
        ]

        assert without_developer_role(messages) == [
            {"role": "system", "content": "d\n\ns"},
            {"role": "user", "content": "u"},
        ]

    def test_keeps_its_parts_where_it_is_first_already(self) -> None:
        parts = [{"type": "text", "text": "d"}]

        assert without_developer_role([{"role": "developer", "content": parts, "tools": 1}]) == [
            {"role": "system", "content": parts}
        ]

    def test_other_conversations_stay_as_they_are(self) -> None:
        messages = [{"role": "system", "content": "a"}, {"role": "system", "content": "b"}]

        assert without_developer_role(messages) is messages
