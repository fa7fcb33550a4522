"""The broker for development says in one line why it cannot start."""

import socket
import subprocess
import sys
from pathlib import Path

import pytest

from runtime.kafka_local import free_port, main, why_not

ROOT = Path(__file__).parents[2]

needs_java = pytest.mark.skipif(why_not() is not None, reason=str(why_not()))


@needs_java
@pytest.mark.parametrize("flag", ["--port", "--controller-port"])
def test_a_port_that_is_taken_is_named(flag, capsys):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        arguments = {"--port": str(free_port()), flag: str(port)}

        assert main([word for pair in arguments.items() for word in pair]) == 2

    (line,) = capsys.readouterr().err.splitlines()
    assert line == f"kafka: cannot listen on 127.0.0.1:{port}: Address already in use"


def test_what_is_no_port_is_refused():
    for word in ("70000", "-1", "http"):
        done = subprocess.run(
            [sys.executable, "-m", "runtime.kafka_local", f"--port={word}"],
            capture_output=True,
            text=True,
            cwd=ROOT,
            timeout=60,
        )
        assert done.returncode == 2
        assert f"{word!r} is no port" in done.stderr
