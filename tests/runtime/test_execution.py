"""One record and everything it depends on failing: what is waited for, and what is given up."""

import time

import pytest

from runtime.bus import Outgoing, Record
from runtime.errors import BusError, StoreAway, StoreError, StoreRefused, Undeliverable
from runtime.execution import Again, Done, Execution
from runtime.retry import RetryPolicy
from schemas.errors import DecodeError, Transient

POLICY = RetryPolicy(max_attempts=3, first_delay_s=0.001, max_delay_s=0.002, max_wait_s=0.002)
RECORD = Record("in", 0, 0, b"k", b"v")
ANSWER, LETTER = Outgoing("answers", b"k", b"a"), Outgoing("letters", b"k", b"l")


class Bus:
    """Takes records but for topics that fail."""

    def __init__(self, **failing: Exception) -> None:
        self.failing = failing
        self.sent: list[str] = []

    async def send(self, record: Outgoing) -> tuple[int, int]:
        if record.topic in self.failing:
            raise self.failing[record.topic]
        self.sent.append(record.topic)
        return 0, 0


class Handler:
    def __init__(self, *errors: Exception, outputs=(ANSWER,), letters=(LETTER,)) -> None:
        self.errors = list(errors)
        self.outputs, self.letters = outputs, letters
        self.handled = 0
        self.given_up: list[Exception] = []

    async def handle(self, record, emit):
        self.handled += 1
        if self.errors:
            raise self.errors.pop(0)
        return self.outputs

    async def give_up(self, record, error, attempts):
        self.given_up.append(error)
        return [o for o in self.letters if o.topic != getattr(error, "topic", None)]


async def run(handler, bus, *, attempts=1, **state):
    return await Execution(bus, handler, POLICY).run(RECORD, attempts, **state)


AWAY = [StoreAway("away"), BusError("away")]


@pytest.mark.parametrize("error", AWAY)
async def test_what_is_away_is_waited_for_however_often_and_uses_no_attempt(error):
    result = await run(Handler(error), Bus(), attempts=3, waits=10_000)

    assert isinstance(result, Again)
    assert not result.uses_attempt
    assert 0 < result.delay_s <= POLICY.max_wait_s


async def test_a_wait_ends_at_the_deadline_and_goes_on_behind_it():
    soon, late = StoreAway("away"), StoreAway("away")
    soon.deadline_ms, late.deadline_ms = time.time() * 1000 + 1, 0

    first, second = [await run(Handler(e), Bus(), waits=10) for e in (soon, late)]

    assert first.delay_s <= 0.001
    assert second.delay_s > 0


@pytest.mark.parametrize("error", [StoreRefused("no name"), DecodeError("x"), ValueError("x")])
async def test_what_can_never_work_is_tried_once(error):
    handler, bus = Handler(error), Bus()

    assert await run(handler, bus) == Done("given_up", 2)
    assert handler.handled == 1
    assert bus.sent == ["letters"]


@pytest.mark.parametrize("error", [StoreError("missing"), Transient("busy")])
async def test_what_may_pass_uses_attempts(error):
    assert (await run(Handler(error), Bus(), attempts=2)).uses_attempt
    assert await run(Handler(error), Bus(), attempts=3) == Done("given_up", 2)


async def test_outputs_that_a_broker_cannot_take_yet_wait_and_the_work_is_done_once():
    handler, bus = Handler(outputs=(ANSWER, LETTER)), Bus(answers=BusError("away"))

    first = await run(handler, bus)
    second = await run(handler, bus, waits=1, unsent=first.unsent)
    bus.failing.clear()
    third = await run(handler, bus, waits=2, unsent=second.unsent)

    assert (first.uses_attempt, second.uses_attempt) == (False, False)
    assert third == Done("done", 4)
    assert bus.sent == ["letters", "answers"]
    assert handler.handled == 1


async def test_an_answer_that_its_destination_refuses_ends_in_a_letter():
    handler, bus = Handler(), Bus(answers=BusError("no", retriable=False))

    assert await run(handler, bus) == Done("given_up", 2)
    assert [error.topic for error in handler.given_up] == ["answers"]


async def test_a_destination_is_not_waited_for_beyond_the_deadline():
    hopeless = Outgoing("answers", b"k", b"a", give_up_ms=1)
    handler, bus = Handler(outputs=(hopeless,)), Bus(answers=BusError("away"))

    assert await run(handler, bus) == Done("given_up", 2)
    assert isinstance(handler.given_up[0], Undeliverable)


async def test_giving_up_does_not_answer_where_an_answer_was_just_refused():
    handler = Handler(ValueError("poison"), letters=(LETTER, ANSWER))
    bus = Bus(answers=BusError("no", retriable=False))

    assert await run(handler, bus) == Done("given_up", 2)
    assert [type(error) for error in handler.given_up] == [ValueError, Undeliverable]


async def test_giving_up_that_fails_by_itself_ends_too():
    class Broken(Handler):
        async def give_up(self, record, error, attempts):
            raise ZeroDivisionError

    assert await run(Broken(ValueError("poison")), Bus()) == Done("lost", 0)


async def test_a_letter_that_the_broker_never_takes_ends_the_process():
    class Letters(Handler):
        async def give_up(self, record, error, attempts):
            return [LETTER]

    with pytest.raises(BusError):
        await run(Letters(ValueError("poison")), Bus(letters=BusError("no", retriable=False)))


@pytest.mark.parametrize("error", AWAY)
async def test_giving_up_waits_for_what_is_away(error):
    class Waiting(Handler):
        async def give_up(self, record, reason, attempts):
            raise error

    result = await run(Waiting(ValueError("poison")), Bus())

    assert isinstance(result, Again)
    assert not result.uses_attempt
