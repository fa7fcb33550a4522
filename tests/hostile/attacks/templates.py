"""Chat templates that came with a request and never end, never stop growing, or break a parser."""

from collections.abc import Iterator
from typing import Any

from tests.hostile.attack import Attack, Send, post, together

FLAGS = ("--trust-request-chat-template",)
_CHAT = {"messages": [{"role": "user", "content": "Hello"}]}
_MANY = "range(100000)"
_IF = "{% if true %}"

SLOW = {
    "loops in loops": f"{{% for a in {_MANY} %}}{{% for b in {_MANY} %}}"
    "{% endfor %}{% endfor %}",
    "a loop over itself": "{% set ns = namespace(x=[1]) %}{% for a in ns.x recursive %}"
    "{{ loop(ns.x) }}{{ loop(ns.x) }}{% endfor %}",
    "a macro that calls itself twice": "{% macro m(n) %}{% if n %}{{ m(n - 1) }}{{ m(n - 1) }}"
    "{% endif %}{% endmacro %}{{ m(40) }}",
    "filters that loop": f"{{{{ ([{_MANY}] * 99999) | map('sum') | list | length }}}}",
    "a power of integers": "{{ (10 ** (messages | length * 10 ** 8)) % 7 }}",
    "a power of integers, while it is compiled": "{{ 10 ** (10 ** 8) }}",
    "a loop that does not print": f"{{% set x = {_MANY} | batch(1) | list %}}"
    f"{{% for a in {_MANY} %}}{{% set y = x | map('first') | sort | list %}}{{% endfor %}}",
    "an integer that is printed": "{{ ((2 ** 8000000) ~ '') | length }}",
    "a search through a long text": "{% set x = 'a' * 5000000 %}"
    "{% for i in range(99999) %}{{ ('a' * 5000 ~ 'b') in x }}{% endfor %}",
}
"""By name; each takes minutes where nothing stops it."""

LARGE = {
    "a repeated text": "{{ 'x' * 1500000000 }}",
    "a repeated text of a variable": "{% set n = 1500000000 %}{{ messages[0].role * n }}",
    "a repeated list": "{{ ([1] * 999999999) | length }}",
    "lipsum": "{{ lipsum(n=1000000) }}",
    "center": "{{ 'x' | center(1500000000) }}",
    "ljust": "{{ 'x'.ljust(1500000000) }}",
    "zfill": "{{ '1'.zfill(1500000000) }}",
    "expandtabs": "{{ '\t'.expandtabs(1500000000) }}",
    "indent": "{{ ('a\n' * 9999) | indent(999999) }}",
    "printf-style formatting": "{{ '%1500000000d' % 1 }}",
    "format": "{{ '{:>1500000000}'.format(1) }}",
    "format with a nested width": "{{ '{:{}}'.format('x', 1500000000) }}",
    "the filter format": "{{ '%1500000000s' | format('x') }}",
    "a text that doubles": "{% set ns = namespace(x='xxxxxxxxxxxxxxxx') %}"
    "{% for i in range(60) %}{% set ns.x = ns.x ~ ns.x %}{% endfor %}{{ ns.x }}",
    "a list that doubles": "{% set ns = namespace(x=[1]) %}"
    "{% for i in range(60) %}{% set ns.x = ns.x + ns.x %}{% endfor %}",
    "join": "{{ (['x' * 99999] * 99999) | join }}",
    "replace": "{{ ('x' * 99999) | replace('x', 'y' * 99999) }}",
    "shifted integers": "{{ 1 * 2 ** 9999999999 }}",
    "a text as long as it may not be": "{{ 'x' * 20000000 }}",
    "json of what repeats": "{{ ([messages] * 9999999) | tojson }}",
    "wordwrap": "{{ ('x ' * 99999999) | wordwrap(1) }}",
}
"""By name; each needs gigabytes where nothing stops it."""

NESTED = {
    "500 ifs": _IF * 500 + "x" + "{% endif %}" * 500,
    "100 loops": "{% for a in [1] %}" * 100 + "x" + "{% endfor %}" * 100,
    "3 000 parentheses": "{{ " + "(" * 3000 + "1" + ")" * 3000 + " }}",
    "100 000 parentheses": "{{ " + "(" * 100000 + "1" + ")" * 100000 + " }}",
    "3 000 brackets": "{{ " + "[" * 3000 + "]" * 3000 + " }}",
    "10 000 minus signs": "{{ " + "-" * 10000 + "1 }}",
    "10 000 nots": "{{ " + "not " * 10000 + "1 }}",
    "a sum of 50 000": "{{ " + "+".join("messages" for _ in range(50000)) + " }}",
    "a chain of 20 000 filters": "{{ 'x'" + "|trim" * 20000 + " }}",
    "20 000 attributes": "{{ messages" + ".x" * 20000 + " }}",
    "20 000 branches": "{% if 1 %}" + "{% elif messages %}" * 20000 + "{% endif %}",
    "a macro without end": "{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}",
    "2 MB of text": "x" * 2_000_000,
    "an unknown tag": "{% import 'os' as os %}{{ os }}",
    "an included file": "{% include '/etc/passwd' %}",
    "an extended file": "{% extends '/etc/passwd' %}",
    "the way out by a class": "{{ ''.__class__.__mro__[1].__subclasses__() }}",
    "the way out by globals": "{{ cycler.__init__.__globals__.os.popen('id').read() }}",
    "the way out by format": "{{ '{0.__class__.__init__.__globals__}'.format(cycler) }}",
    "the way out by attr": "{{ (cycler | attr('__init__')).__globals__ }}",
    "the way out by map": "{{ [cycler] | map(attribute='__init__.__globals__') | list }}",
    "an error as long as a book": "{{ raise_exception('x' * 5000000) }}",
    "a lone surrogate": "{{ '\\ud800' }}",
    "nothing": "{# #}",
}
"""By name; each is refused, by whatever reads it first."""

ALL = SLOW | LARGE | NESTED


def bodies(template: str) -> Iterator[tuple[str, str, dict[str, Any]]]:
    """The ways in which a template gets into a request: where, path and body."""
    yield "chat", "/v1/chat/completions", {**_CHAT, "max_tokens": 1, "chat_template": template}
    kwargs = {"chat_template_kwargs": {"chat_template": template}}
    yield "responses", "/v1/responses/render", {"input": "Hello", **kwargs}
    yield "tokenize", "/tokenize", {**_CHAT, "chat_template": template}


def _send(template: str) -> Send:
    _, path, body = next(bodies(template))
    return post(path, body)


_OTHERS = [
    Attack(f"a template with a loop in a {where}", post(path, body), frozenset({400}), FLAGS)
    for where, path, body in list(bodies(SLOW["loops in loops"]))[2:]
]

ATTACKS = [
    *(
        Attack(f"a template with {name}", _send(template), frozenset({400}), FLAGS)
        for name, template in ALL.items()
    ),
    *_OTHERS,
    Attack(
        "40 templates with loops",
        together(*[_send(SLOW["loops in loops"]) for _ in range(40)]),
        frozenset({400}),
        FLAGS,
    ),
]
