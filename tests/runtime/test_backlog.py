"""Records of one key take turns, all others are free, and the sums stay right."""

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from runtime.backlog import Backlog, Work
from runtime.bus import Record, TopicPartition, record_bytes
from runtime.offsets import OffsetTracker


def make_work(offset: int, key: bytes | None, partition: int = 0) -> Work:
    return Work(Record("t", partition, offset, key, b"value"), OffsetTracker(), taken_ms=0)


def test_records_of_one_key_take_turns():
    backlog = Backlog()
    first, second, other = make_work(0, b"a"), make_work(1, b"a"), make_work(2, b"b")
    for work in (first, second, other):
        backlog.add(work)

    assert [backlog.start(), backlog.start(), backlog.start()] == [first, other, None]
    backlog.finish(first)
    assert backlog.start() is second


def test_records_without_a_key_do_not_wait_for_each_other():
    backlog = Backlog()
    works = [make_work(n, None) for n in range(3)]
    for work in works:
        backlog.add(work)

    assert [backlog.start() for _ in range(3)] == works


def test_a_postponed_record_keeps_its_key_but_not_its_slot():
    backlog = Backlog()
    first, second = make_work(0, b"a"), make_work(1, b"a")
    backlog.add(first)
    backlog.add(second)
    assert backlog.start() is first
    backlog.suspend(first)

    assert (backlog.running, backlog.start()) == (0, None)
    backlog.resume(first)
    assert backlog.start() is first


def test_what_is_dropped_does_not_come_back():
    backlog = Backlog()
    running, waiting, queued = make_work(0, b"a"), make_work(1, b"b"), make_work(2, b"a")
    for work in (running, waiting, queued):
        backlog.add(work)
    assert [backlog.start(), backlog.start()] == [running, waiting]
    backlog.suspend(waiting)

    backlog.drop([running.record.source])
    backlog.resume(waiting)
    assert (backlog.start(), backlog.bytes, backlog.running) == (None, 0, 1)
    backlog.finish(running)
    assert (backlog.start(), backlog.running) == (None, 0)


class Turns(RuleBasedStateMachine):
    """Against a plain list of what is held."""

    def __init__(self) -> None:
        super().__init__()
        self.backlog = Backlog()
        self.held: list[Work] = []
        self.running: list[Work] = []
        self.waiting: list[Work] = []
        self.offset = 0

    @rule(key=st.sampled_from([b"a", b"b", None]), partition=st.integers(0, 1))
    def add(self, key, partition):
        work = make_work(self.offset, key, partition)
        self.offset += 1
        self.backlog.add(work)
        self.held.append(work)

    @rule()
    def start(self):
        work = self.backlog.start()
        busy = {w.lane for w in self.running + self.waiting if w in self.held}
        free = [w for w in self.held if w.lane not in busy]
        assert (work is None) == (not free)
        if work:
            assert work is next(w for w in free if w.lane == work.lane)
            self.running.append(work)

    @precondition(lambda self: self.running)
    @rule(data=st.data())
    def finish(self, data):
        work = data.draw(st.sampled_from(self.running))
        self.running.remove(work)
        self.held = [w for w in self.held if w is not work]
        self.backlog.finish(work)

    @precondition(lambda self: self.running)
    @rule(data=st.data())
    def suspend(self, data):
        work = data.draw(st.sampled_from(self.running))
        self.running.remove(work)
        self.waiting.append(work)
        self.backlog.suspend(work)

    @precondition(lambda self: self.waiting)
    @rule(data=st.data())
    def resume(self, data):
        work = data.draw(st.sampled_from(self.waiting))
        self.waiting.remove(work)
        self.backlog.resume(work)

    @rule(partition=st.integers(0, 1))
    def drop(self, partition):
        source = TopicPartition("t", partition)
        self.backlog.drop([source])
        self.held = [w for w in self.held if w.record.source != source]

    @invariant()
    def sums_are_right(self):
        assert self.backlog.running == len(self.running)
        assert self.backlog.bytes == sum(record_bytes(w.record) for w in self.held)


Turns.TestCase.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
TestTurns = Turns.TestCase
