"""The payload rules: every combination of facts on every leg, against the rules in words."""

from itertools import product

import pytest

from coordinator.rules import TABLE, Action, Facts, Leg, apply, decide
from schemas.envelope import Item
from schemas.errors import ApiError, FailureCode

ALL_FACTS = [Facts(*values) for values in product((False, True), repeat=5)]


def item(**changes):
    fields = {"modality": "image", "mm_hash": "ab", "offset": 3, "length": 4}
    return Item(**(fields | changes))


@pytest.mark.parametrize("facts", ALL_FACTS, ids=str)
def test_encode_needs_kwargs_unless_somebody_encoded_the_item(facts):
    rule = decide(Leg.ENCODE, facts)

    if facts.encoded or (not facts.kwargs and facts.ec):
        assert rule.action is Action.SKIP
    else:
        assert rule.action is (Action.SEND if facts.kwargs else Action.REJECT)
    assert rule.sends_kwargs == (rule.action is Action.SEND)
    assert not rule.sends_metadata


@pytest.mark.parametrize("facts", ALL_FACTS, ids=str)
def test_prefill_after_encode_never_gets_kwargs(facts):
    rule = decide(Leg.PREFILL_ENCODED, facts)

    has_embedding = facts.ec or facts.encoded
    complete = has_embedding and (facts.metadata or not facts.needs_metadata)
    assert rule.action is (Action.SEND if complete else Action.REJECT)
    assert not rule.sends_kwargs
    assert rule.sends_metadata == (complete and facts.needs_metadata)


@pytest.mark.parametrize("facts", ALL_FACTS, ids=str)
def test_direct_prefill_needs_kwargs_or_an_announced_embedding(facts):
    rule = decide(Leg.PREFILL_DIRECT, facts)

    with_embedding = facts.ec and (facts.metadata or not facts.needs_metadata)
    assert rule.action is (Action.SEND if facts.kwargs or with_embedding else Action.REJECT)
    assert rule.sends_kwargs == facts.kwargs
    # Metadata is ignored when kwargs_data is there.
    assert rule.sends_metadata == (not facts.kwargs and with_embedding and facts.metadata)


def test_every_row_of_the_table_decides_about_something():
    used = {id(decide(leg, facts)) for leg in Leg for facts in ALL_FACTS}

    assert used == {id(rule) for rule in TABLE}


def test_every_rejection_has_a_reason():
    assert all(rule.reason for rule in TABLE if rule.action is Action.REJECT)


def test_items_are_decided_one_by_one():
    full = Facts(kwargs=True, metadata=False, ec=False, encoded=False, needs_metadata=True)
    announced = Facts(kwargs=False, metadata=True, ec=True, encoded=False, needs_metadata=True)

    decided = apply(Leg.PREFILL_DIRECT, [(item(), full), (item(mm_hash="cd"), announced)])

    assert [rule.sends_kwargs for _, rule in decided] == [True, False]
    assert [rule.sends_metadata for _, rule in decided] == [False, True]


def test_a_rejection_names_the_item():
    nothing = Facts(kwargs=False, metadata=True, ec=False, encoded=False, needs_metadata=True)

    with pytest.raises(ApiError, match="image item at position 3 of prompt 0") as caught:
        apply(Leg.PREFILL_DIRECT, [(item(), nothing)])

    assert (caught.value.status, caught.value.type, caught.value.param) == (
        400,
        "Bad Request",
        "body",
    )
    assert caught.value.code is FailureCode.INVALID_REQUEST
