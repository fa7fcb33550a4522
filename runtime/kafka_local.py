"""A one-node Apache Kafka without Docker, for development and tests: jars by Maven, Java 17.

`python -m runtime.kafka_local [--port 9092] [--dir D]` runs one until it is ended. No role of the
fleet imports this.
"""

import argparse
import base64
import fcntl
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType, TracebackType
from typing import IO, Self

from runtime.addresses import listening_problem
from runtime.errors import SettingsError
from schemas.topics import MAX_REQUEST_RECORD_BYTES

KAFKA_VERSION = "4.3.1"
"""The one version that tests, benchmarks and the compose file run."""

_MIN_JAVA = 17
_POM = f"""\
<project xmlns="http://maven.apache.org/POM/4.0.0">
  <modelVersion>4.0.0</modelVersion>
  <groupId>tokenfleet</groupId><artifactId>kafka-local</artifactId><version>1</version>
  <dependencies>
    <dependency>
      <groupId>org.apache.kafka</groupId><artifactId>kafka_2.13</artifactId>
      <version>{KAFKA_VERSION}</version>
    </dependency>
    <dependency>
      <groupId>org.slf4j</groupId><artifactId>slf4j-nop</artifactId><version>1.7.36</version>
    </dependency>
  </dependencies>
</project>
"""
# One node, so one replica of everything; groups form without a delay; a killed broker is fenced,
# and so takes its partitions back, within seconds.
_PROPERTIES = {
    "process.roles": "broker,controller",
    "node.id": "1",
    "controller.listener.names": "CONTROLLER",
    "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT",
    "offsets.topic.replication.factor": "1",
    "offsets.topic.num.partitions": "8",
    "transaction.state.log.replication.factor": "1",
    "transaction.state.log.min.isr": "1",
    "transaction.state.log.num.partitions": "8",
    "share.coordinator.state.topic.replication.factor": "1",
    "share.coordinator.state.topic.min.isr": "1",
    # For a fleet or two on a few cores: every further thread is one more to wake.
    "num.network.threads": "1",
    "num.io.threads": "2",
    "group.coordinator.threads": "1",
    # A commit is written when it comes: there are too few to wait for more.
    "group.coordinator.append.linger.ms": "0",
    "group.initial.rebalance.delay.ms": "0",
    "group.min.session.timeout.ms": "1000",
    "broker.session.timeout.ms": "3000",
    "broker.heartbeat.interval.ms": "500",
    "log.cleaner.dedupe.buffer.size": str(8 * 1024 * 1024),
    "replica.fetch.max.bytes": str(2 * MAX_REQUEST_RECORD_BYTES),
}
_JAVA_FLAGS = ("-Xms256m", "-Xmx512m", "-XX:+UseSerialGC")
# For minutes: half a minute of load pays for a better compiler only after that.
_SHORT_LIVED_FLAGS = ("-XX:TieredStopAtLevel=1",)


def default_cache() -> Path:
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "tokenfleet" / "kafka"


def why_not(cache: Path | None = None) -> str | None:
    """What is missing to run a broker here, in words; None when nothing is."""
    java = _java_version()
    if java is None or java < _MIN_JAVA:
        return f"Java {_MIN_JAVA} or newer is needed, found {java or 'none'}"
    if shutil.which("mvn") is None and not _is_fetched(cache or default_cache()):
        return "Maven (mvn) is needed once, to fetch Apache Kafka"
    return None


def fetch_jars(cache: Path | None = None) -> Path:
    """Folder with Kafka's jars, fetched once per machine. SettingsError where Maven fails."""
    folder = (cache or default_cache()) / KAFKA_VERSION
    folder.mkdir(parents=True, exist_ok=True)
    with _locked(folder / "lock"):
        if not (folder / "complete").exists():
            (folder / "pom.xml").write_text(_POM)
            _run_maven(folder)
            (folder / "complete").touch()
    return folder / "lib"


class LocalKafka:
    """One broker process, ended on exit; a folder of its own making is removed then."""

    def __init__(
        self,
        *,
        port: int = 0,
        controller_port: int = 0,
        directory: Path | None = None,
        is_long_lived: bool = False,
    ) -> None:
        """Ports of 0 are chosen. `is_long_lived`: compiled as in production, which takes time of
        its own at first."""
        self.port = port or free_port()
        self._flags = _JAVA_FLAGS if is_long_lived else _JAVA_FLAGS + _SHORT_LIVED_FLAGS
        self._controller_port = controller_port or free_port()
        self._is_temporary = directory is None
        self._directory = directory or Path(tempfile.mkdtemp(prefix="kafka-local-"))
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def servers(self) -> str:
        return f"127.0.0.1:{self.port}"

    @property
    def pid(self) -> int | None:
        return self._process.pid if self._process else None

    def start(self, *, timeout_s: float = 60.0) -> None:
        """Return once it takes connections. SettingsError when it does not."""
        for port in (self.port, self._controller_port):
            _require_free(port)
        jars = fetch_jars()
        self._directory.mkdir(parents=True, exist_ok=True)
        self._write_properties()
        if not (self._directory / "log" / "meta.properties").exists():
            self._format(jars)
        with self._log_file() as output:
            self._process = subprocess.Popen(
                _java(jars, self._flags, "kafka.Kafka", str(self._properties)),
                stdout=output,
                stderr=subprocess.STDOUT,
                # Its own session: a Ctrl-C meant for its owner must not end it first.
                start_new_session=True,
            )
        self._wait_until_up(timeout_s)

    def wait(self) -> int:
        """Block until the process ends by itself."""
        return self._process.wait() if self._process else 0

    def kill(self) -> None:
        """As a power cut: SIGKILL. `start` again keeps port and data."""
        self._end(signal.SIGKILL, timeout_s=10)

    def stop(self) -> None:
        self._end(signal.SIGTERM, timeout_s=20)
        if self._is_temporary:
            shutil.rmtree(self._directory, ignore_errors=True)

    def __enter__(self) -> Self:
        try:
            self.start()
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()

    @property
    def _properties(self) -> Path:
        return self._directory / "server.properties"

    def _log_file(self) -> IO[bytes]:
        return (self._directory / "output.log").open("ab")

    def _write_properties(self) -> None:
        broker, controller = self.servers, f"127.0.0.1:{self._controller_port}"
        lines = _PROPERTIES | {
            "controller.quorum.voters": f"1@{controller}",
            "listeners": f"PLAINTEXT://{broker},CONTROLLER://{controller}",
            "advertised.listeners": f"PLAINTEXT://{broker}",
            "log.dirs": str(self._directory / "log"),
        }
        self._properties.write_text("".join(f"{k}={v}\n" for k, v in lines.items()))

    def _format(self, jars: Path) -> None:
        arguments = ("format", "-t", _cluster_id(), "-c", str(self._properties))
        with self._log_file() as output:
            done = subprocess.run(
                _java(jars, _SHORT_LIVED_FLAGS, "kafka.tools.StorageTool", *arguments),
                stdout=output,
                stderr=subprocess.STDOUT,
                timeout=60,
                check=False,
            )
        if done.returncode:
            raise SettingsError(f"Kafka cannot use {self._directory}: {self._last_line()}")

    def _wait_until_up(self, timeout_s: float) -> None:
        give_up_at = time.monotonic() + timeout_s
        while True:
            is_up = _answers(self.port)
            ended = self._process is None or self._process.poll() is not None
            if is_up and not ended:
                return
            if ended or time.monotonic() > give_up_at:
                raise SettingsError(f"Kafka did not start on {self.servers}: {self._last_line()}")
            time.sleep(0.05)

    def _last_line(self) -> str:
        with suppress(OSError):
            lines = (self._directory / "output.log").read_text(errors="replace").splitlines()
            return next((line.strip() for line in reversed(lines) if line.strip()), "no output")
        return "no output"

    def _end(self, number: signal.Signals, *, timeout_s: float) -> None:
        if self._process is None:
            return
        self._process.send_signal(number)
        try:
            self._process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._process = None


def _cluster_id() -> str:
    """As Kafka writes a UUID; one that starts with a dash would be taken for an option."""
    return "k" + base64.urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")[1:]


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])


def _require_free(port: int) -> None:
    """Else whoever has it would be taken for the broker."""
    try:
        socket.create_server(("127.0.0.1", port)).close()
    except OSError as error:
        reason = listening_problem(error)
        raise SettingsError(f"cannot listen on 127.0.0.1:{port}: {reason}") from None


def _answers(port: int) -> bool:
    with suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1):
        return True
    return False


def _java(jars: Path, flags: Sequence[str], main: str, *arguments: str) -> Sequence[str]:
    return ("java", *flags, "-cp", f"{jars}/*", main, *arguments)


def _java_version() -> int | None:
    try:
        text = subprocess.run(
            ["java", "-version"], capture_output=True, text=True, timeout=30, check=True
        ).stderr
    except (OSError, subprocess.SubprocessError):
        return None
    found = re.search(r'version "(\d+)', text)
    return int(found.group(1)) if found else None


def _is_fetched(cache: Path) -> bool:
    return (cache / KAFKA_VERSION / "complete").exists()


def _run_maven(folder: Path) -> None:
    command = ["mvn", "-q", "-B", "-f", str(folder / "pom.xml"), "dependency:copy-dependencies"]
    options = [f"-DoutputDirectory={folder / 'lib'}", "-DincludeScope=runtime"]
    try:
        subprocess.run([*command, *options], check=True, timeout=600, capture_output=True)
    except (OSError, subprocess.SubprocessError) as error:
        raise SettingsError(f"Maven could not fetch Apache Kafka {KAFKA_VERSION}") from error


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _interrupt(number: int, frame: FrameType | None) -> None:
    raise KeyboardInterrupt


def _port(text: str) -> int:
    if not text.isdigit() or int(text) > 65535:
        raise argparse.ArgumentTypeError(f"{text!r} is no port")
    return int(text)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m runtime.kafka_local", description=__doc__)
    parser.add_argument("--port", type=_port, default=9092, help="of the broker (default: 9092)")
    parser.add_argument(
        "--controller-port", type=_port, default=0, help="of its controller (default: a free one)"
    )
    parser.add_argument("--dir", type=Path, help="keep the data here (default: a fresh folder)")
    options = parser.parse_args(arguments)
    if (reason := why_not()) is not None:
        sys.stderr.write(f"{reason}\n")
        return 2
    signal.signal(signal.SIGTERM, _interrupt)
    try:
        with LocalKafka(
            port=options.port,
            controller_port=options.controller_port,
            directory=options.dir,
            is_long_lived=True,
        ) as broker:
            sys.stdout.write(f"Apache Kafka {KAFKA_VERSION} on {broker.servers}; Ctrl-C ends it\n")
            sys.stdout.flush()
            return broker.wait()
    except SettingsError as error:
        sys.stderr.write(f"kafka: {error}\n")
        return 2
    except KeyboardInterrupt:
        return 0


if __name__ == "__main__":
    sys.exit(main())
