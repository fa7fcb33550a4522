"""Finds or starts the one real broker of a test session, shared by all its processes."""

import fcntl
import json
import os
import shutil
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from runtime.errors import SettingsError
from runtime.kafka_local import KAFKA_VERSION, LocalKafka, free_port, why_not


class NoBroker(Exception):
    """Why there is none, in words."""


def servers(folder: Path) -> str:
    """Bootstrap servers of the session's broker, started by whoever asks first."""
    given = os.environ.get("KAFKA_BOOTSTRAP_SERVERS")
    if given:
        return given
    with _locked(folder):
        state = _read(folder)
        if not state:
            state = _start(folder)
            _write(folder, state)
    if "why_not" in state:
        raise NoBroker(state["why_not"])
    return state["servers"]


def stop(folder: Path) -> None:
    """End what `servers` started, by its process or container id."""
    state = _read(folder)
    if "pid" in state:
        with suppress(ProcessLookupError):
            os.kill(state["pid"], signal.SIGKILL)
    if "container" in state:
        subprocess.run(["docker", "rm", "-f", state["container"]], capture_output=True, timeout=60)
    shutil.rmtree(folder, ignore_errors=True)


def _start(folder: Path) -> dict[str, Any]:
    reasons = []
    for start in (_start_container, _start_jars):
        try:
            return start(folder)
        except NoBroker as reason:
            reasons.append(str(reason))
    return {"why_not": "no KAFKA_BOOTSTRAP_SERVERS; " + "; ".join(reasons)}


def _start_container(_folder: Path) -> dict[str, Any]:
    if not _docker_answers():
        raise NoBroker("no Docker engine answers")
    try:
        from testcontainers.core.config import testcontainers_config
        from testcontainers.core.container import DockerContainer
        from testcontainers.core.waiting_utils import wait_for_logs
    except ImportError:
        raise NoBroker("testcontainers is not installed") from None
    # The session removes the container itself: it outlives the worker process that started it.
    testcontainers_config.ryuk_disabled = True
    port = free_port()
    container = DockerContainer(f"apache/kafka:{KAFKA_VERSION}").with_bind_ports(port, port)
    for name, value in _container_settings(port).items():
        container = container.with_env(name, value)
    container.start()
    wait_for_logs(container, "Kafka Server started", timeout=60)
    return {
        "servers": f"127.0.0.1:{port}",
        "container": container.get_wrapped_container().id,
    }


def _container_settings(port: int) -> dict[str, str]:
    return {
        "KAFKA_NODE_ID": "1",
        "KAFKA_PROCESS_ROLES": "broker,controller",
        "KAFKA_LISTENERS": f"PLAINTEXT://:{port},CONTROLLER://:9093",
        "KAFKA_ADVERTISED_LISTENERS": f"PLAINTEXT://127.0.0.1:{port}",
        "KAFKA_LISTENER_SECURITY_PROTOCOL_MAP": "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT",
        "KAFKA_CONTROLLER_LISTENER_NAMES": "CONTROLLER",
        "KAFKA_CONTROLLER_QUORUM_VOTERS": "1@localhost:9093",
        "KAFKA_OFFSETS_TOPIC_REPLICATION_FACTOR": "1",
        "KAFKA_TRANSACTION_STATE_LOG_REPLICATION_FACTOR": "1",
        "KAFKA_TRANSACTION_STATE_LOG_MIN_ISR": "1",
        "KAFKA_GROUP_INITIAL_REBALANCE_DELAY_MS": "0",
        "KAFKA_GROUP_MIN_SESSION_TIMEOUT_MS": "1000",
    }


def _docker_answers() -> bool:
    try:
        return subprocess.run(["docker", "info"], capture_output=True, timeout=10).returncode == 0
    except (OSError, subprocess.SubprocessError):
        return False


def _start_jars(folder: Path) -> dict[str, Any]:
    reason = why_not()
    if reason is not None:
        raise NoBroker(reason)
    broker = LocalKafka(directory=folder / "kafka")
    try:
        broker.start()
    except (SettingsError, subprocess.SubprocessError) as error:
        raise NoBroker(str(error)) from error
    return {"servers": broker.servers, "pid": broker.pid}


def _read(folder: Path) -> dict[str, Any]:
    with suppress(FileNotFoundError):
        return json.loads((folder / "broker.json").read_text())
    return {}


def _write(folder: Path, state: dict[str, Any]) -> None:
    (folder / "broker.json").write_text(json.dumps(state))


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    with (folder / "lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
