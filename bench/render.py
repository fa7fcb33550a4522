"""Render speed side by side with vLLM's render server: same bodies, same machine, same run.

    python bench/render.py MODEL --peer http://127.0.0.1:8200 \\
        [--peer-command "vllm-render launch render MODEL --port 8200"] [--kafka]

Rounds alternate between the two servers, so that whatever else the machine does hits both. One
answer per case is compared first. `--kafka` measures ours with ingress, coordinator and render in a
process each, on a broker of its own, instead of `launch render` with its default of processes; the
broker is under load for a while first.
"""

import argparse
import json
import shlex
import statistics
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from urllib.parse import urlsplit

from breakdown import print_breakdown
from processes import cpu_s, num_processes, running, wait_until_up
from render_answers import check_equal
from render_cases import CASES, Case

from runtime.kafka_local import LocalKafka

START_S = 180.0
WARM_S = 5.0
"""Until stores are full and memory is used again instead of being asked for."""
BROKER_WARM_S = 30.0
"""Until its virtual machine has compiled what is used often."""


@dataclass
class Server:
    """One side of the comparison."""

    name: str
    url: str
    pids: Sequence[int] = ()
    """Whose processor time is counted; empty: unknown."""


@dataclass
class Series:
    """All rounds of one case, one number of clients and one server."""

    seconds: float = 0.0
    cpu_s: float = 0.0
    latencies_ms: list[float] = field(default_factory=list)
    rates: list[float] = field(default_factory=list)

    def add(self, report: dict[str, Any], cpu: float) -> None:
        self.seconds += report["seconds"]
        self.cpu_s += cpu
        self.latencies_ms += report["latencies_ms"]
        self.rates.append(len(report["latencies_ms"]) / report["seconds"])

    @property
    def rate(self) -> float:
        return statistics.median(self.rates)

    @property
    def cpu_ms(self) -> float:
        return self.cpu_s * 1000 / len(self.latencies_ms)

    def percentile(self, share: float) -> float:
        ordered = sorted(self.latencies_ms)
        return ordered[min(int(len(ordered) * share), len(ordered) - 1)]


class Load:
    """The load generator's process; hands out numbers of bodies that were never sent before."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process
        self._next = 0

    def run(
        self, server: Server, case: int, clients: int, seconds: float, most: int | None = None
    ) -> dict[str, Any]:
        """Until the time is over, or `most` requests are answered."""
        address = urlsplit(server.url)
        order = {
            "case": case, "host": address.hostname, "port": address.port,
            "clients": clients, "seconds": seconds, "first": self._next, "most": most,
        }  # fmt: skip
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(order) + "\n")
        self._process.stdin.flush()
        report: dict[str, Any] = json.loads(self._process.stdout.readline())
        self._next = report["next"]
        if set(report["statuses"]) != {"200"}:
            raise RuntimeError(f"{server.name} answered {report['statuses']}")
        return report


@contextmanager
def load_generator() -> Iterator[Load]:
    command = [sys.executable, str(Path(__file__).with_name("http_load.py"))]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        yield Load(process)


# --- servers


def tokenfleet() -> str:
    """The command of the environment that runs this."""
    return str(Path(sys.executable).with_name("tokenfleet"))


@contextmanager
def ours(arguments: argparse.Namespace) -> Iterator[Server]:
    """`launch render`, or three processes on a broker."""
    with ExitStack() as stack:
        commands = [_launch(arguments)]
        if arguments.kafka:
            commands = _roles(arguments, stack)
        children = [stack.enter_context(running(command)) for command in commands]
        url = f"http://127.0.0.1:{arguments.port}"
        wait_until_up(f"{url}/ready", children, START_S)
        for number in range(1, len(children)):
            wait_until_up(f"http://127.0.0.1:{arguments.port + number}/ready", children, START_S)
        yield Server("ours", url, [child.pid for child in children])


def _launch(arguments: argparse.Namespace) -> list[str]:
    return [
        tokenfleet(), "launch", "render", arguments.model,
        "--port", str(arguments.port), "--log-level", arguments.log_level,
    ]  # fmt: skip


def _roles(arguments: argparse.Namespace, stack: ExitStack) -> list[list[str]]:
    broker = stack.enter_context(LocalKafka(is_long_lived=True))
    store = stack.enter_context(TemporaryDirectory(prefix="bench-store-"))
    common = [
        arguments.model, "--bus", f"kafka://{broker.servers}", "--store", f"file://{store}",
        "--log-level", arguments.log_level,
    ]  # fmt: skip
    port = arguments.port
    return [
        [tokenfleet(), "ingress", *common, "--port", str(port), "--enable-scale-out"],
        [tokenfleet(), "coordinator", *common, "--health-port", str(port + 1)],
        [tokenfleet(), "worker", "render", *common, "--health-port", str(port + 2)],
    ]


@contextmanager
def peer(arguments: argparse.Namespace) -> Iterator[Server | None]:
    """As its URL says; started here where a command is given, and only then its time is known."""
    if arguments.peer is None:
        yield None
    elif arguments.peer_command is None:
        yield Server("peer", arguments.peer)
    else:
        with running(shlex.split(arguments.peer_command)) as child:
            wait_until_up(f"{arguments.peer}/health", [child], START_S)
            yield Server("peer", arguments.peer, [child.pid])


# --- measuring


def measure(
    load: Load, servers: Sequence[Server], case: int, clients: int, arguments: argparse.Namespace
) -> list[Series]:
    """Alternating rounds."""
    series = [Series() for _ in servers]
    for server in servers:
        load.run(server, case, clients, WARM_S)
    for _ in range(arguments.rounds):
        for server, measured in zip(servers, series, strict=True):
            before = cpu_s(server.pids)
            report = load.run(server, case, clients, arguments.seconds)
            measured.add(report, cpu_s(server.pids) - before)
    return series


_TITLES = ("req/s", "p50 ms", "p99 ms", "CPU ms/req")


def _row(series: Series) -> str:
    cpu = f"{series.cpu_ms:10.2f}" if series.cpu_s else f"{'-':>10}"
    p50, p99 = series.percentile(0.5), series.percentile(0.99)
    return f"{series.rate:9.1f} {p50:8.1f} {p99:8.1f} {cpu}"


def _line(case: Case, clients: int, series: Sequence[Series], goal: float) -> str:
    text = f"{case.name:45} {clients:3} " + " | ".join(map(_row, series))
    if len(series) > 1:
        ratio = series[0].rate / series[1].rate
        text += f" | {ratio:6.2f} {goal:6.1f} {'' if ratio >= goal else '  missed'}"
    return text


def print_head(servers: Sequence[Server]) -> None:
    titles = "{:>9} {:>8} {:>8} {:>10}".format(*_TITLES)
    print(f"{'':49} " + " | ".join(f"{server.name:^38}" for server in servers))
    ratio = " |  ratio target" if len(servers) > 1 else ""
    print(f"{'case':45} {'cl.':3} " + " | ".join([titles] * len(servers)) + ratio)


def _shortest() -> int:
    """The case with the most requests, and so the most records, in a given time."""
    return min(range(len(CASES)), key=lambda number: sum(map(len, CASES[number].body(0))))


def options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("model", help="as both servers are to take it: it enters the hashes")
    parser.add_argument("--peer", help="URL of vLLM's render server; none: ours alone")
    parser.add_argument("--peer-command", help="starts that server for the time of the run")
    parser.add_argument("--kafka", action="store_true", help="ours in three processes on a broker")
    parser.add_argument("--port", type=int, default=8190, help="of ours, and up to two more")
    parser.add_argument("--clients", type=int, nargs="+", default=[8, 16])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=4.0, help="of one round")
    parser.add_argument("--cases", type=int, nargs="+", default=list(range(len(CASES))))
    parser.add_argument("--log-level", default="warning")
    return parser.parse_args()


def main() -> None:
    arguments = options()
    with ours(arguments) as first, peer(arguments) as second, load_generator() as load:
        servers = [server for server in (first, second) if server is not None]
        if second is not None:
            for number in arguments.cases:
                check_equal(CASES[number], first.url, second.url)
            print(f"answers to {len(arguments.cases)} cases are equal")
        for server in servers:
            if server.pids:
                print(f"{server.name}: {num_processes(server.pids)} processes")
        if arguments.kafka:
            load.run(first, _shortest(), max(arguments.clients), BROKER_WARM_S)
        print_head(servers)
        cpu_ms: dict[int, float] = {}
        for number in arguments.cases:
            goal = CASES[number].target * (0.5 if arguments.kafka else 1)
            for clients in arguments.clients:
                series = measure(load, servers, number, clients, arguments)
                cpu_ms[number] = series[0].cpu_ms
                print(_line(CASES[number], clients, series, goal), flush=True)
    print_breakdown(arguments.model, [(CASES[n], cpu_ms[n]) for n in arguments.cases])


if __name__ == "__main__":
    main()
