"""One line per event, with what is bound and what is given."""

import asyncio
import io
import json
import logging
import time
import warnings

import pytest

from runtime import logs
from runtime.telemetry import Telemetry
from runtime.watchdog import Watchdog


@pytest.fixture
def stream():
    """What a configured root logger writes to."""
    return io.StringIO()


def test_a_json_line_has_event_fields_and_bound_context(stream):
    logs.configure("info", "json", stream=stream)
    with logs.bound(request_id="r-1"):
        logging.getLogger("x").info("happened", extra={"count": 3})
    logging.getLogger("x").info("later")

    first, second = map(json.loads, stream.getvalue().splitlines())
    assert first | {"time": ""} == {
        "time": "",
        "level": "info",
        "logger": "x",
        "event": "happened",
        "request_id": "r-1",
        "count": 3,
    }
    assert first["time"].endswith("Z")
    assert "request_id" not in second


def test_a_trace_is_one_field(stream):
    logs.configure("info", "json", stream=stream)
    try:
        raise ZeroDivisionError
    except ZeroDivisionError:
        logging.getLogger("x").exception("failed")

    assert "ZeroDivisionError" in json.loads(stream.getvalue())["trace"]


def test_anything_can_be_a_field(stream):
    logs.configure("info", "json", stream=stream)
    logging.getLogger("x").info("e", extra={"value": object(), "blob": b"\xff", "map": {1: None}})

    assert json.loads(stream.getvalue())["map"] == {"1": None}


@pytest.mark.parametrize("value", ["\ud800", 2**70, {"a": "\udfff"}, {1: 2**64}])
def test_what_is_no_json_is_told_all_the_same(value, stream):
    logs.configure("info", "json", stream=stream)
    logging.getLogger("x").info("e", extra={"value": value})

    (line,) = stream.getvalue().splitlines()
    assert json.loads(line)["event"] == "e"


def test_no_line_has_codes_for_terminals(stream):
    logs.configure("info", "json", stream=stream)
    logging.getLogger("uvicorn").info(
        "Started process [%d]", 7, extra={"color_message": "Started process [\x1b[36m%d\x1b[0m]"}
    )
    logging.getLogger("x").info(
        "\x1b[1mbold\x1b[0m", extra={"deep": ["\x1b[31mred", {"a": "\x1b[K"}]}
    )

    first, second = map(json.loads, stream.getvalue().splitlines())
    assert first["event"] == "Started process [7]"
    assert "color_message" not in first
    assert (second["event"], second["deep"]) == ("bold", ["red", {"a": ""}])


def test_on_a_terminal_nobody_outside_writes_lines_of_their_own(stream):
    logs.configure("info", "console", stream=stream)
    logging.getLogger("x").info("asked", extra={"path": "/a\n12:00:00 info forged\x1b[2J\x07"})

    (line,) = stream.getvalue().splitlines()
    assert line.endswith(r"asked path=/a\n12:00:00 info forged\x07")


@pytest.mark.parametrize(("is_terminal", "is_json"), [(True, False), (False, True)])
def test_auto_is_the_console_form_on_a_terminal_only(is_terminal, is_json, stream):
    stream.isatty = lambda: is_terminal
    logs.configure("info", "auto", stream=stream)
    logging.getLogger("x").info("e")

    assert stream.getvalue().startswith("{") is is_json


def test_warnings_of_libraries_are_lines_too(stream):
    logs.configure("info", "json", stream=stream)
    warnings.showwarning("old", DeprecationWarning, "library.py", 1)

    (line,) = stream.getvalue().splitlines()
    assert json.loads(line)["logger"] == "py.warnings"
    assert "DeprecationWarning: old" in json.loads(line)["event"]


def test_the_console_form_is_for_people(stream):
    logs.configure("info", "console", stream=stream)
    logging.getLogger("x").warning("happened", extra={"count": 3})

    assert stream.getvalue().split(" ", 1)[1] == "warning happened count=3\n"


def test_lines_below_the_level_are_left_out(stream):
    logs.configure("warning", "json", stream=stream)
    logging.getLogger("x").info("quiet")
    logging.getLogger("aiokafka").info("quieter")

    assert stream.getvalue() == ""


def test_a_library_that_repeats_itself_is_heard_now_and_then(stream):
    logs.configure("info", "json", stream=stream)
    for port in range(5):
        logging.getLogger("aiokafka.conn").error("Unable to connect to %s", port)
        logging.getLogger("x").error("Unable to connect to %s", port)

    names = [json.loads(line)["logger"] for line in stream.getvalue().splitlines()]
    assert (names.count("aiokafka.conn"), names.count("x")) == (1, 5)


async def test_tasks_do_not_see_each_others_context(stream):
    logs.configure("info", "json", stream=stream)

    async def work(name: str) -> None:
        logs.bind(request_id=name)
        await asyncio.sleep(0)
        await asyncio.to_thread(logging.getLogger("x").info, "worked", extra={"name_": name})

    await asyncio.gather(work("a"), work("b"))

    lines = [json.loads(line) for line in stream.getvalue().splitlines()]
    assert sorted((line["request_id"], line["name_"]) for line in lines) == [("a", "a"), ("b", "b")]


def test_fields_of_the_process_are_in_every_line_and_give_way_to_its_own(stream):
    logs.configure("info", "json", stream=stream, always={"server": 2})

    logging.getLogger("x").info("one")
    logging.getLogger("x").info("other", extra={"server": 1})

    assert [json.loads(line)["server"] for line in stream.getvalue().splitlines()] == [2, 1]


def test_the_watchdog_reports_the_worst_of_late(caplog):
    telemetry = Telemetry()
    watchdog = Watchdog(telemetry, warn_s=1)
    with caplog.at_level("WARNING"):
        for late_s in (0.01, 2.0, -0.001, 0.02):
            watchdog.observe(late_s)

    assert telemetry.loop_lag._value.get() == 2.0
    assert [record.getMessage() for record in caplog.records] == ["event_loop_blocked"]


async def test_the_watchdog_notices_a_blocked_loop():
    telemetry = Telemetry()
    task = asyncio.create_task(Watchdog(telemetry, interval_s=0.01).run())
    await asyncio.sleep(0.02)
    time.sleep(0.2)  # noqa: ASYNC251 - the very fault
    await asyncio.sleep(0.02)
    task.cancel()

    assert telemetry.loop_lag._value.get() > 0.1
