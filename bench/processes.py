"""Servers under test as child processes: started, waited for, their processor time, ended.

Knows nothing of what they serve.
"""

import os
import signal
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

_TICKS = os.sysconf("SC_CLK_TCK")
_PAGE = os.sysconf("SC_PAGE_SIZE")


@contextmanager
def running(
    command: Sequence[str], environment: Mapping[str, str] | None = None
) -> Iterator[subprocess.Popen[bytes]]:
    """A child until the block is left; what it said is shown where it ended by itself."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that blocks are left then, too
    with tempfile.TemporaryFile() as log:
        child = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            env={**os.environ, **(environment or {})},
        )
        try:
            yield child
        finally:
            if child.poll() is not None:
                log.seek(0)
                print(log.read()[-4000:].decode(errors="replace"))
            _end(child)


def _end(child: subprocess.Popen[bytes]) -> None:
    child.terminate()
    try:
        child.wait(20)
    except subprocess.TimeoutExpired:
        child.kill()
        child.wait()


def wait_until_up(url: str, children: Sequence[subprocess.Popen[bytes]], timeout_s: float) -> None:
    """Return once a GET is answered with 200. RuntimeError at the time-out or a child's end."""
    give_up_at = time.monotonic() + timeout_s
    while time.monotonic() < give_up_at:
        if any(child.poll() is not None for child in children):
            break
        try:
            with urllib.request.urlopen(url, timeout=5) as answer:
                if answer.status == 200:
                    return
        except (urllib.error.URLError, OSError):
            pass
        time.sleep(0.2)
    raise RuntimeError(f"{url} did not come up")


def cpu_s(pids: Sequence[int]) -> float:
    """Processor time that processes and their children have used so far."""
    return sum(_own_cpu_s(pid) for root in pids for pid in family(root))


def num_processes(pids: Sequence[int]) -> int:
    """Processes and their children."""
    return sum(len(family(root)) for root in pids)


def rss_bytes(pid: int) -> int:
    """Resident memory of a process and its children; what they share counts for each."""
    return sum(_own_rss_bytes(member) for member in family(pid))


def family(root: int) -> list[int]:
    """A process and all that it has started, directly or not."""
    found = [root]
    for pid in found:
        try:
            tasks = list(Path(f"/proc/{pid}/task").iterdir())
            found += [int(c) for task in tasks for c in (task / "children").read_text().split()]
        except OSError:
            continue
    return found


def _own_rss_bytes(pid: int) -> int:
    try:
        return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * _PAGE
    except OSError:
        return 0


def _own_cpu_s(pid: int) -> float:
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0.0
    return (int(fields[11]) + int(fields[12])) / _TICKS
