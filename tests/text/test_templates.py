from typing import Any
from unicodedata import normalize

import pytest

from schemas.errors import ApiError
from workers.text import templates
from workers.text.private_tokens import PrivateTokens
from workers.text.templates import ChatTemplate, TemplateCache

NONE = PrivateTokens(())
PAD = "<|image_pad|>"


def render(source: str, messages: list[dict[str, Any]] | None = None, **variables: Any) -> str:
    turns = messages or [{"role": "user", "content": "hi"}]
    return ChatTemplate(source, NONE).render(turns, variables)


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("{{ {'b': 'é<>', 'a': 1} | tojson }}", '{"b": "é<>", "a": 1}'),
        ("{{ {'b': 1, 'a': 2} | tojson(sort_keys=true, indent=1) }}", '{\n "a": 2,\n "b": 1\n}'),
        ("  {% if true %}\nx\n  {% endif %}\ny", "x\ny"),
        ("{% for i in range(9) %}{% if i == 2 %}{% break %}{% endif %}{{ i }}{% endfor %}", "01"),
        ("{% generation %}a{{ messages[0].content }}{% endgeneration %}b", "ahib"),
        ("{{ documents is none }}{{ add_generation_prompt }}{{ tools is none }}", "TrueFalseTrue"),
        ("{{ missing is defined }}{{ missing }}", "False"),
        ("{{ strftime_now('%Y') | length }}", "4"),
    ],
)
def test_renders_as_hugging_face_does(source: str, expected: str) -> None:
    assert expected == render(source)


@pytest.mark.parametrize(
    "source",
    [
        "{{ messages.append(1) }}",
        "{{ ''.__class__.__mro__ }}",
        "{{ cycler.__init__.__globals__ }}",
        "{% set x = messages[0].update({'role': 'system'}) %}",
    ],
)
def test_the_sandbox_lets_nothing_out_and_changes_nothing(source: str) -> None:
    messages = [{"role": "user", "content": "hi"}]

    with pytest.raises(ApiError) as caught:
        render(source, messages)

    assert caught.value.status == 400
    assert messages == [{"role": "user", "content": "hi"}]


def test_an_error_carries_the_innermost_reason() -> None:
    with pytest.raises(ApiError) as caught:
        render("{{ raise_exception('no ' ~ messages[0].role) }}")

    assert caught.value.message == "no user"
    assert caught.value.type == "BadRequestError"


def test_a_template_with_a_syntax_error_is_the_callers_fault() -> None:
    with pytest.raises(ApiError, match="Expected an expression"):
        render("{% for %}")


@pytest.mark.parametrize("name", ["messages", "conversation", "tokenizer"])
def test_arguments_of_the_renderer_are_no_variables(name: str) -> None:
    with pytest.raises(ApiError, match=name):
        ChatTemplate("{{ messages }}", NONE).render([], {name: 1})


def test_messages_among_the_kwargs_of_a_template_without_messages_are_ignored() -> None:
    assert ChatTemplate("{{ x }}", NONE).render([], {"messages": [], "x": 1}) == "1"


@pytest.mark.parametrize("name", ["tokenize", "padding", "return_dict"])
def test_arguments_about_tokens_are_ignored(name: str) -> None:
    assert render("{{ " + name + " is defined }}", **{name: True}) == "False"


class TestContinuation:
    SOURCE = "{% for m in messages %}[{{ m.content }}]{% endfor %}"

    def test_everything_behind_the_final_message_goes(self) -> None:
        assert self.render([{"role": "assistant", "content": "So"}]) == "[So"

    def test_trailing_space_stays_where_the_template_keeps_it(self) -> None:
        assert self.render([{"role": "assistant", "content": "So "}]) == "[So "

    def test_trailing_space_goes_where_the_template_trims(self) -> None:
        messages = [{"role": "assistant", "content": "So "}]

        assert self.render(messages, "{{ messages[0].content | trim }}]") == "So"

    def test_the_last_text_part_is_continued(self) -> None:
        parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}, {"type": "image"}]
        source = "{% for p in messages[0].content %}{{ p.text }},{% endfor %}"

        assert self.render([{"role": "assistant", "content": parts}], source) == "a,b"

    @pytest.mark.parametrize("content", [None, [], [{"type": "image"}]])
    def test_nothing_to_continue_is_refused(self, content: Any) -> None:
        with pytest.raises(ApiError, match="continue"):
            self.render([{"role": "assistant", "content": content}])

    def test_a_template_that_drops_the_message_is_refused(self) -> None:
        with pytest.raises(ApiError, match="does not appear"):
            self.render([{"role": "assistant", "content": "So"}], "{{ 'content' }}")

    def test_continuing_and_starting_anew_exclude_each_other(self) -> None:
        with pytest.raises(ApiError, match="not compatible"):
            self.render([{"role": "assistant", "content": "a"}], add_generation_prompt=True)

    def render(self, messages: list[dict[str, Any]], source: str = SOURCE, **variables: Any) -> str:
        template = ChatTemplate(source, NONE)
        return template.render(messages, variables, continue_final_message=True)


class TestPrivateTokens:
    tokens = PrivateTokens([PAD, "<|im_end|>"])

    @pytest.mark.parametrize(
        "source",
        [
            "a" + PAD + "b",
            "{{ 'a" + PAD + "b' }}",
            "{{ 'a' ~ '" + PAD + "' ~ 'b' }}",
            "{% set p = '" + PAD + "' %}a{{ p }}b",
            "{% macro m(p) %}{{ p }}{% endmacro %}a{{ m('" + PAD + "') }}b",
            "a{{ '" + PAD + "' if messages else '' }}b",
            "{{ ['a', 'b'] | join('" + PAD + "') }}",
            "{{ 'axb' | replace('x', '" + PAD + "') }}",
            "{{ {'k': 'a" + PAD + "b'}['k'] }}",
        ],
    )
    def test_what_the_template_writes_is_private(self, source: str) -> None:
        text = self.render(source)

        assert PAD not in text
        assert self.tokens.reveal(text) == f"a{PAD}b"

    @pytest.mark.parametrize(
        "source",
        [
            "{{ messages[0].content }}",
            "{% if '" + PAD + "' in messages[0].content %}{{ messages[0].content }}{% endif %}",
            "{{ messages[0].content.split('" + PAD + "') | join(messages[0].content[1:14]) }}",
            "{% if messages[0].content.startswith('a"
            + PAD
            + "') %}a"
            + "{{ messages[0].content[1:] }}{% endif %}",
        ],
    )
    def test_what_the_caller_wrote_is_not(self, source: str) -> None:
        assert self.render(source, f"a{PAD}b") == f"a{PAD}b"

    @pytest.mark.parametrize(
        ("source", "shown"),
        [
            ("{{ messages }}", "[{'role': 'user', 'content': 'PAD'}]"),
            ("{{ messages | tojson }}", '[{"role": "user", "content": "PAD"}]'),
            ("{{ messages[0].content | upper | trim }}", "PAD"),
        ],
    )
    def test_a_placeholder_stays_one_however_it_is_shown(self, source: str, shown: str) -> None:
        """As placeholders get into a message's text."""
        text = self.render(source, self.tokens.hide(PAD))

        assert self.tokens.reveal(text) == shown.replace("PAD", PAD)

    def test_spellings_are_the_same_in_every_normal_form(self) -> None:
        for spelling in self.tokens.spelling.values():
            assert all(normalize(f, spelling) == spelling for f in ("NFC", "NFD", "NFKC", "NFKD"))

    def test_spellings_differ_from_process_to_process(self) -> None:
        assert PrivateTokens([PAD]).spelling != self.tokens.spelling

    def test_errors_are_readable(self) -> None:
        with pytest.raises(ApiError) as caught:
            self.render("{{ raise_exception('no " + PAD + "') }}")

        assert caught.value.message == f"no {PAD}"

    def test_positions_are_told_as_people_see_them(self) -> None:
        text = self.tokens.hide(f"ab{PAD}cd<|im_end|>e")

        position = self.tokens.reveal_positions(text)

        assert [position(0), position(2)] == [0, 2]
        assert position(text.index("cd")) == len(f"ab{PAD}")
        assert position(len(text)) == len(f"ab{PAD}cd<|im_end|>e")

    def render(self, source: str, content: str = "x") -> str:
        return ChatTemplate(source, self.tokens).render([{"role": "user", "content": content}], {})


def test_compiled_templates_are_kept_and_bounded(monkeypatch: Any) -> None:
    monkeypatch.setattr(templates, "_CACHED_TEMPLATES", 2)
    cache = TemplateCache(NONE)

    first = cache.get("a")

    assert cache.get("a") is first
    cache.get("b")
    cache.get("c")
    assert cache.get("a") is not first


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("{% for m in messages %}{{ m.content }}{% endfor %}", True),
        ("{% if messages[2].role == 'system' %}{{ raise_exception('no') }}{% endif %}", False),
        ("{% generation %}x{% endgeneration %}", False),
        ("{{ messages[0].content.x.y }}", False),
    ],
)
def test_tells_whether_system_messages_may_come_late(source: str, expected: bool) -> None:
    assert expected == templates.takes_late_system(source)
