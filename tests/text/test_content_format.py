import pytest

from workers.text.private_tokens import PrivateTokens
from workers.text.templates import ChatTemplate

LOOPS_OVER_CONTENT = [
    "{% for m in messages %}{% for c in m['content'] %}x{% endfor %}{% endfor %}",
    "{% for m in messages %}{% for c in m.content %}x{% endfor %}{% endfor %}",
    "{% for m in messages[1:] %}{% for c in m.content | selectattr('type') %}x{% endfor %}"
    "{% endfor %}",
    "{% set rest = messages[1:] %}{% for m in rest %}{% for c in m.content %}x{% endfor %}"
    "{% endfor %}",
    "{% set ns = namespace(all=messages) %}{% for m in ns.all %}{% for c in m.content %}x"
    "{% endfor %}{% endfor %}",
    "{% set ns = namespace() %}{% set ns.all = messages %}{% for m in ns.all %}"
    "{% for c in m.content %}x{% endfor %}{% endfor %}",
    "{% macro show(what) %}{% for c in what %}x{% endfor %}{% endmacro %}"
    "{% for m in messages %}{{ show(m.content) }}{% endfor %}",
    "{% macro show(what) %}{% for c in what %}x{% endfor %}{% endmacro %}"
    "{% for m in messages %}{{ show(what=m.content) }}{% endfor %}",
    "{% for content in messages %}{% for c in content %}x{% endfor %}{% endfor %}",
]
PRINTS_CONTENT = [
    "{% for m in messages %}{{ m.content }}{% endfor %}",
    "{% for m in messages %}{% for c in m.tool_calls %}x{% endfor %}{% endfor %}",
    "{% for t in tools %}{% for c in t.content %}x{% endfor %}{% endfor %}",
    "{% macro show(content) %}{% for c in content %}x{% endfor %}{% endmacro %}"
    "{% for m in messages %}{{ show(m.role) }}{% endfor %}",
    "",
]


@pytest.mark.parametrize("source", LOOPS_OVER_CONTENT)
def test_a_template_that_loops_over_content_wants_parts(source: str) -> None:
    assert ChatTemplate(source, PrivateTokens(())).content_format == "openai"


@pytest.mark.parametrize("source", PRINTS_CONTENT)
def test_a_template_that_prints_content_wants_text(source: str) -> None:
    assert ChatTemplate(source, PrivateTokens(())).content_format == "string"
