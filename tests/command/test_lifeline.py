"""What a server process and its parent say to each other."""

import socket
from pathlib import Path

import pytest

from tokenfleet.cli import make_plan
from tokenfleet.lifeline import PLAN, SAID, Lifeline, Refused, plan_line
from tokenfleet.options import Values
from tokenfleet.plan import RENDER_SERVER
from tokenfleet.shares import shares_of


@pytest.mark.parametrize(
    "values",
    [
        {},
        {
            "api_key": ("a", "b"),
            "limit_mm_per_prompt": {"image": 2},
            "media_io_kwargs": {"video": {"num_frames": -1, "fps": 0.5}},
            "chat_template": "{{ 'line\nbreak' }}",
            "request_timeout_s": "inf",
            "served_model_name": ("ä",),
        },
    ],
)
def test_a_child_gets_the_plan_as_its_parent_has_it(values):
    plan = make_plan(Values(values), RENDER_SERVER, "m", "render")

    for share in shares_of(plan, 2, port=1, num_cores=2):
        assert PLAN.validate_json(plan_line(share)) == share


def test_a_refusal_reaches_the_parent_word_for_word():
    ours, theirs = socket.socketpair()

    with ours, theirs:
        Lifeline(theirs, Path("metrics")).refuse("no\n'such' thing")
        said = SAID.validate_json(ours.makefile("rb").readline())

    assert said == Refused(reason="no\n'such' thing")


def test_telling_a_parent_that_is_gone_is_no_error():
    ours, theirs = socket.socketpair()
    ours.close()

    with theirs:
        Lifeline(theirs, Path("metrics")).refuse("nobody hears it")
