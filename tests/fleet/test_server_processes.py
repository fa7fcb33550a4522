"""Several server processes behind one port, started as a user would."""

import json
import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from http.client import HTTPConnection
from pathlib import Path

import httpx
import pytest

from runtime.kafka_local import free_port
from tests.fleet.processes import START_S, STOP_S, Process, environment, until

MODEL = Path(__file__).parents[1] / "data" / "models" / "llama3-render"
TOKENIZE = json.dumps({"model": "m", "prompt": "one two three"}).encode()
COUNT = 2

pytestmark = pytest.mark.timeout(300)


def arguments(port: int, *more: str) -> list[str]:
    return [
        *("launch", "render", str(MODEL), "--port", str(port), "--served-model-name", "m"),
        *("--api-server-count", str(COUNT), "--log-format", "json", *more),
    ]


class Server:
    """A render server of two processes; what is left of it at the end is killed."""

    def __init__(self, folder: Path, *, until: int = COUNT) -> None:
        self.port = free_port()
        self.parent = Process(
            "server", arguments(self.port), log=folder / "server.log", probes=self.port
        )
        self.until_ready(until)

    def until_ready(self, num_starts: int) -> None:
        """Until so many processes have become ready, dead ones included."""

        def is_ready() -> bool:
            return len(self.parent.events("process_ready")) >= num_starts

        until(is_ready, self.parent.describe, START_S)

    def pids(self) -> dict[int, int]:
        """Of the processes by their numbers; those that were started last."""
        return {event["server"]: event["pid"] for event in self.parent.events("process_started")}

    def connect(self) -> HTTPConnection:
        return HTTPConnection("127.0.0.1", self.port, timeout=STOP_S)

    def connections(self) -> dict[int, HTTPConnection]:
        """A connection to each process, by its number."""
        found: dict[int, HTTPConnection] = {}
        for _ in range(64):  # the kernel chooses: a fair coin
            connection = self.connect()
            found.setdefault(self.answered_by(connection), connection)
            if len(found) == COUNT:
                break
        return found

    def answered_by(self, connection: HTTPConnection) -> int:
        """Ask something and look into the log for who did the work."""
        handled = len(self.handled())
        assert ask(connection) == 200
        until(lambda: len(self.handled()) > handled, self.parent.describe, STOP_S)
        return int(self.handled()[handled]["server"])

    def handled(self) -> list[dict]:
        return [e for e in self.parent.events("record_handled") if ".admissions" in e["topic"]]

    def figure(self, name: str) -> float:
        text = httpx.get(f"{self.parent.url}/metrics", timeout=STOP_S).text
        return sum(float(value) for value in re.findall(rf"^{name}\S* (\S+)$", text, re.MULTILINE))

    def close(self) -> None:
        left = self.pids().values()
        self.parent.kill()
        until(lambda: not any(map(is_alive, left)), self.parent.describe, STOP_S)


def num_listeners(port: int) -> int:
    """As the kernel knows them: 0A is LISTEN."""
    lines = Path("/proc/net/tcp").read_text().splitlines()[1:]
    sockets = [line.split()[1:4] for line in lines]
    return sum(local.endswith(f":{port:04X}") and state == "0A" for local, _, state in sockets)


def ask(connection: HTTPConnection) -> int:
    connection.request("POST", "/tokenize", TOKENIZE, {"content-type": "application/json"})
    response = connection.getresponse()
    assert len(json.loads(response.read())["tokens"]) == 4
    return response.status


def begin(connection: HTTPConnection) -> None:
    """Send the head of a request and return when it is being waited for the body."""
    connection.putrequest("POST", "/tokenize")
    connection.putheader("content-type", "application/json")
    connection.putheader("content-length", str(len(TOKENIZE)))
    connection.putheader("expect", "100-continue")
    connection.endheaders()
    assert connection.sock.recv(1000).startswith(b"HTTP/1.1 100 ")


def finish(connection: HTTPConnection) -> int:
    connection.send(TOKENIZE)
    return connection.getresponse().status


def is_alive(pid: int) -> bool:
    """A zombie is not: it waits for somebody to take note."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def is_open(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def refusal(*command: str) -> str:
    """The one line on stderr of a command that ends with 2."""
    done = subprocess.run(
        [sys.executable, "-m", "tokenfleet", *command, "--log-level", "error"],
        capture_output=True,
        text=True,
        timeout=START_S,
        env=environment(),
    )
    assert done.returncode == 2, done.stderr
    (line,) = done.stderr.splitlines()
    return line


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    running = Server(tmp_path_factory.mktemp("server"))
    yield running
    running.close()


@pytest.fixture
def own_server(tmp_path: Path) -> Iterator[Server]:
    """One that a test may end."""
    running = Server(tmp_path)
    yield running
    running.close()


def test_readiness_is_told_once_all_of_them_listen(tmp_path: Path) -> None:
    server = Server(tmp_path, until=0)
    try:
        until(server.parent.is_ready, server.parent.describe, START_S)
        assert num_listeners(server.port) == COUNT
    finally:
        server.close()


def test_both_processes_answer_on_one_port_and_their_figures_add_up(server: Server):
    before = server.figure("http_requests_total")

    connections = server.connections()
    asked = [ask(connection) for connection in connections.values() for _ in range(3)]

    assert set(connections) == {1, 2}
    assert asked == [200] * 6
    num_asked = len(server.handled()) - before
    assert num_asked >= 8
    assert server.figure("http_requests_total") - before == num_asked
    assert server.figure("http_request_duration_seconds_count") - before == num_asked


def test_the_load_is_that_of_the_whole_server(server: Server):
    answers = [httpx.get(f"{server.parent.url}/load", timeout=STOP_S).json() for _ in range(6)]

    assert answers == [{"server_load": 0}] * 6


def test_a_process_that_is_killed_is_replaced_and_the_other_one_goes_on(server: Server):
    connections, pids = server.connections(), server.pids()
    begin(connections[2])

    os.kill(pids[1], signal.SIGKILL)
    until(lambda: len(server.parent.events("process_died")) == 1, server.parent.describe, STOP_S)

    assert finish(connections[2]) == 200
    assert all(ask(server.connect()) == 200 for _ in range(8))
    server.until_ready(COUNT + 1)
    assert set(server.connections()) == {1, 2}
    (died,) = server.parent.events("process_died")
    assert (died["server"], died["pid"], died["signal"]) == (1, pids[1], "SIGKILL")


def test_a_port_in_use_is_refused_in_one_line(server: Server):
    assert f"127.0.0.1:{server.port}: Address already in use" in refusal(*arguments(server.port))


def test_a_model_that_is_not_there_is_refused_in_one_line():
    line = refusal("launch", "render", "/no/such/model", "--api-server-count", "2", "--port", "0")

    assert "/no/such/model" in line


def test_what_only_a_child_can_find_is_refused_in_one_line():
    line = refusal(*arguments(0, "--chat-template", "/no/such.jinja"))

    assert line.startswith("tokenfleet: ")
    assert "/no/such.jinja" in line


def test_requests_under_way_are_answered_before_the_server_ends(own_server: Server):
    connections = own_server.connections()
    for connection in connections.values():
        begin(connection)

    own_server.parent.terminate()
    until(lambda: not is_open(own_server.port), own_server.parent.describe, STOP_S)

    assert [finish(connection) for connection in connections.values()] == [200, 200]
    assert own_server.parent.exit_code() == 0
    assert not any(map(is_alive, own_server.pids().values()))


def test_signals_to_all_processes_at_once_are_one_order(own_server: Server):
    """As some service managers send them: who has been told already is not told to hurry."""
    for pid in own_server.pids().values():
        os.kill(pid, signal.SIGTERM)
        os.kill(pid, signal.SIGINT)
    own_server.parent.terminate()

    assert own_server.parent.exit_code() == 0
    assert own_server.parent.events("process_died") == []


def test_told_twice_it_ends_at_once(own_server: Server):
    begin(own_server.connect())
    pids = own_server.pids().values()

    own_server.parent.terminate()
    until(lambda: not is_open(own_server.port), own_server.parent.describe, STOP_S)
    own_server.parent.terminate()

    assert own_server.parent.exit_code() == 3
    until(lambda: not any(map(is_alive, pids)), own_server.parent.describe, STOP_S)


def test_no_process_outlives_its_parent(own_server: Server):
    pids = own_server.pids().values()
    assert all(map(is_alive, pids))

    own_server.parent.kill()

    until(lambda: not any(map(is_alive, pids)), own_server.parent.describe, STOP_S)
    until(lambda: not is_open(own_server.port), own_server.parent.describe, STOP_S)


def test_nor_while_it_starts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("TMPDIR", str(tmp_path))  # nobody is left who could clean up
    server = Server(tmp_path, until=0)
    until(lambda: len(server.pids()) == COUNT, server.parent.describe, START_S)

    server.close()

    assert "Traceback" not in server.parent.output()
