from runtime.aborts import Aborts
from schemas.envelope import now_ms
from schemas.records.control import Abort


def abort(name: str, seconds: float) -> Abort:
    return Abort(id=name, deadline_ms=int(now_ms() + seconds * 1000))


def test_an_abort_is_told_and_remembered():
    aborts, told = Aborts(), []
    aborts.watch(told.append)

    aborts.add(abort("a", 60))

    assert told == [b"a"]
    assert aborts.has(b"a")
    assert not aborts.has(b"b")
    assert not aborts.has(None)


def test_what_is_past_its_deadline_is_forgotten():
    aborts = Aborts()
    aborts.add(abort("old", -1))

    aborts.add(abort("new", 60))

    assert not aborts.has(b"old")
    assert aborts.has(b"new")


def test_no_more_than_so_many_are_remembered():
    aborts = Aborts(limit=2)

    for name in ("a", "b", "c"):
        aborts.add(abort(name, 60))

    assert [aborts.has(name) for name in (b"a", b"b", b"c")] == [False, True, True]
