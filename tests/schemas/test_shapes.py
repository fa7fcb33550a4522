"""One odd value in one field, for every field of every body: what vLLM's models said."""

import json
from collections import defaultdict

import pytest

from schemas.errors import ApiError
from schemas.limits import PERMISSIVE
from schemas.routes import Kind
from schemas.validation import validated
from tests.schemas.recorded import DATA

ROWS = defaultdict(list)
for line in (DATA / "shapes.jsonl").read_text().splitlines():
    kind, body, *answer = json.loads(line)
    ROWS[Kind(kind)].append((body, tuple(answer)))


@pytest.mark.parametrize("kind", ROWS)
@pytest.mark.parametrize("is_light", [True, False])
def test_odd_values_are_accepted_or_refused_as_recorded(kind: Kind, is_light: bool) -> None:
    differing = {
        body: got for body, want in ROWS[kind] if (got := outcome(kind, body, is_light)) != want
    }
    assert not differing


def outcome(kind: Kind, body: str, is_light: bool) -> tuple[int, str | None, str | None]:
    """A body of many values gets the same answers, though from another validator."""
    try:
        validated(kind, json.loads(body), PERMISSIVE, is_light=is_light)
    except ApiError as error:
        return error.status, error.type, error.param
    return 200, None, None


def test_every_kind_with_a_schema_of_its_own_is_covered() -> None:
    assert set(Kind) - set(ROWS) == {Kind.CHAT, Kind.COMPLETION}
