"""Server processes that do not live long. Those that do are in tests/fleet."""

from pathlib import Path

import pytest

from runtime.lifecycle import EXIT_FAILED, run_services
from tokenfleet.cli import make_plan
from tokenfleet.options import Values, environment
from tokenfleet.plan import RENDER_SERVER
from tokenfleet.processes import Processes, environment_of_child


@pytest.fixture
def processes(tmp_path: Path) -> Processes:
    plan = make_plan(Values(), RENDER_SERVER, "m", "render")
    return Processes([plan], tmp_path, environment())


async def test_processes_that_die_as_they_start_are_given_up(processes, monkeypatch, caplog):
    monkeypatch.setattr("tokenfleet.processes.plan_line", lambda plan: b"no plan\n")

    code = await run_services([processes.service()], timeout_s=10)

    assert code == EXIT_FAILED
    died = [record for record in caplog.records if record.message == "process_died"]
    assert [record.code for record in died] == [1, 1, 1]
    assert "died 3 times as it started" in caplog.text


def test_children_tokenize_on_one_core_unless_the_operator_says_otherwise(tmp_path):
    by_default = environment_of_child({}, tmp_path)
    asked = environment_of_child({"TOKENIZERS_PARALLELISM": "true"}, tmp_path)

    assert by_default["TOKENIZERS_PARALLELISM"] == "false"
    assert asked["TOKENIZERS_PARALLELISM"] == "true"
