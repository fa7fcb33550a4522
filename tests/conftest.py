"""Fixtures for every test, and the one real broker of a session."""

import logging
import os
import tempfile
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests import broker

FOLDER = "TEST_BROKER_FOLDER"
_skipped: list[str] = []


@pytest.fixture(scope="session")
def kafka_servers() -> str:
    """Bootstrap servers of a real broker, `host:port[,host:port]`."""
    try:
        return broker.servers(Path(os.environ[FOLDER]))
    except broker.NoBroker as reason:
        if os.environ.get("CI"):
            pytest.fail(f"CI needs a broker: {reason}", pytrace=False)
        pytest.skip(str(reason))


@pytest.fixture(autouse=True)
def root_logger() -> Iterator[None]:
    """A test that runs a command configures logging; the next one finds it as it was."""
    root = logging.getLogger()
    before = root.level, root.handlers[:]
    yield
    logging.captureWarnings(False)
    root.setLevel(before[0])
    root.handlers[:] = before[1]


@pytest.fixture
def topic_prefix() -> str:
    """A fresh prefix: tests share one broker and never see each other's topics."""
    return f"t{uuid.uuid4().hex[:10]}."


def pytest_configure(config: pytest.Config) -> None:
    if not _is_worker(config):
        # Inherited by the worker processes of xdist: all of them share one broker.
        os.environ[FOLDER] = tempfile.mkdtemp(prefix="tokenfleet-tests-")


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    if report.skipped and "kafka" in report.keywords and isinstance(report.longrepr, tuple):
        _skipped.append(report.longrepr[2].removeprefix("Skipped: "))


def pytest_unconfigure(config: pytest.Config) -> None:
    if _is_worker(config):
        return
    broker.stop(Path(os.environ.pop(FOLDER)))
    if _skipped:
        line = f"{len(_skipped)} tests were skipped for want of a Kafka broker: {_skipped[0]}"
        config.get_terminal_writer().line(line, yellow=True)


def _is_worker(config: pytest.Config) -> bool:
    return hasattr(config, "workerinput")
