"""What cannot start says why in one readable line and ends with code 2."""

import asyncio
import errno
import os
import socket
import subprocess
import sys
from collections.abc import Coroutine
from pathlib import Path
from typing import Any

import pytest

from runtime.kafka_local import free_port
from runtime.storage.blobs import open_blobs
from runtime.storage.file_blobs import FileBlobs
from tests.fleet.asking import MODEL
from tests.fleet.processes import environment
from tokenfleet.__main__ import main

HERE = Path(__file__).parent
KAFKA = ("--bus", "kafka://127.0.0.1:1")
FILE = ("--store", f"file://{HERE}")

BUCKET = {
    "AWS_ENDPOINT": "http://127.0.0.1:1",
    "AWS_ALLOW_HTTP": "true",
    "AWS_REGION": "r",
    "AWS_ACCESS_KEY_ID": "k",
    "AWS_SECRET_ACCESS_KEY": "s",
}

REFUSED = {
    "bus without a scheme": (["serve", "--bus", "localhost:9092"], "--bus"),
    "bus of another kind": (["serve", "--bus", "redis://localhost"], "kafka://host:port"),
    "bus without a port": (["ingress", "--bus", "kafka://localhost", *FILE], "is not host:port"),
    "broker away": (["ingress", *KAFKA, *FILE], "no broker answers"),
    "memory store on kafka": (["ingress", *KAFKA], "--store"),
    "role alone on the memory bus": (["worker", "render"], "--bus memory://"),
    "engine without a shared cache": (["worker", "encode", *KAFKA, *FILE], "--ec"),
    "store of another kind": (["serve", "--store", "ftp://host/x"], "--store"),
    "cache of another kind": (["serve", "--ec", "redis://host"], "--ec"),
    "port out of range": (["serve", "--port", "70000"], "--port"),
    "word where a number belongs": (["serve", "--port", "http"], "--port"),
    "level that is none": (["serve", "--log-level", "loud"], "--log-level"),
    "text where JSON belongs": (["serve", "--limit-mm-per-prompt", "one"], "--limit-mm-per-prompt"),
    "dtype that is none": (["serve", "--dtype", "float99"], "float99"),
    "stage that is none": (["ingress", "--generate-stage", "both"], "--generate-stage"),
    "transfer without a role": (
        ["serve", "--ec-transfer-config", '{"ec_connector": "ECExampleConnector"}'],
        "ec_role",
    ),
    "host that is not ours": (["serve", "--host", "192.0.2.1", "--port", "0"], "192.0.2.1"),
    "prefix that no topic may have": (["serve", "--topic-prefix", "a b"], "--topic-prefix"),
}


def bounded(fleet: Coroutine[Any, Any, int]) -> int:
    return asyncio.run(asyncio.wait_for(fleet, 60))


def refusal(
    arguments: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> str:
    """The line that the command leaves on stderr."""
    monkeypatch.setattr(sys, "argv", ["tokenfleet", *arguments])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 2
    captured = capsys.readouterr()
    (line,) = (
        line
        for line in captured.err.splitlines()
        if line.strip() and not line.startswith(("Usage", "Try"))
    )
    return line


@pytest.fixture(autouse=True)
def _plain_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TOKENFLEET_MODEL", str(MODEL))
    monkeypatch.setenv("TOKENFLEET_LOG_LEVEL", "error")
    monkeypatch.delenv("VLLM_ENABLE_SCALE_OUT_ENDPOINTS", raising=False)
    # Where nothing is refused a fleet would run, and the test with it.
    monkeypatch.setattr("tokenfleet.run.run_loop", bounded)


@pytest.mark.parametrize(("arguments", "said"), REFUSED.values(), ids=REFUSED)
def test_a_setting_that_cannot_be_is_named(arguments, said, monkeypatch, capsys):
    line = refusal(arguments, monkeypatch, capsys)

    assert said in line
    assert "Traceback" not in line


@pytest.mark.parametrize("value", ["2", "", "true", "yes"])
def test_the_scale_out_variable_takes_only_0_and_1(value, monkeypatch, capsys):
    monkeypatch.setenv("VLLM_ENABLE_SCALE_OUT_ENDPOINTS", value)

    for command in (["serve"], ["launch", "render"]):
        line = refusal(command, monkeypatch, capsys)
        assert f"VLLM_ENABLE_SCALE_OUT_ENDPOINTS={value!r}" in line


def test_a_render_server_with_scale_out_switched_off_is_a_conflict(monkeypatch, capsys):
    monkeypatch.setenv("VLLM_ENABLE_SCALE_OUT_ENDPOINTS", "0")

    assert "conflicts" in refusal(["launch", "render"], monkeypatch, capsys)


def test_a_variable_that_no_setting_has_is_named(monkeypatch, capsys):
    monkeypatch.setenv("TOKENFLEET_BUSS", "memory://")

    assert "TOKENFLEET_BUSS" in refusal(["serve"], monkeypatch, capsys)


def test_a_flag_that_no_setting_has_is_named(monkeypatch, capsys):
    assert "--prot" in refusal(["serve", "--prot", "1"], monkeypatch, capsys)


def test_a_model_that_is_not_there_is_named(monkeypatch, capsys):
    assert "/no/such/model" in refusal(["serve", "/no/such/model"], monkeypatch, capsys)


def test_a_directory_that_is_no_model_is_refused(tmp_path, monkeypatch, capsys):
    assert "config.json" in refusal(["serve", str(tmp_path)], monkeypatch, capsys)


def test_a_model_of_a_family_nobody_wrote_is_refused(tmp_path, monkeypatch, capsys):
    (tmp_path / "config.json").write_text('{"model_type": "odd", "vision_config": {"depth": 1}}')

    assert "'odd'" in refusal(["serve", str(tmp_path)], monkeypatch, capsys)


def test_a_directory_without_weights_serves_no_model(tmp_path, monkeypatch, capsys):
    for file in MODEL.iterdir():
        if file.suffix != ".safetensors":
            (tmp_path / file.name).symlink_to(file)

    assert "safetensors" in refusal(["serve", str(tmp_path)], monkeypatch, capsys)


@pytest.fixture(params=["locked", "read-only", "file", "below a file"])
def unusable(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """A path that no process can keep files in."""
    path = tmp_path / "store"
    match request.param:
        case "locked":
            if os.geteuid() == 0:
                pytest.skip("root may write everywhere")
            path.mkdir(mode=0o500)
        case "read-only":
            path = Path("/proc/self")
            if not path.is_dir():
                pytest.skip("there is no /proc here")
        case "file":
            path.touch()
        case "below a file":
            path.touch()
            path = path / "store"
    return path


def test_a_store_that_cannot_be_written_is_refused(unusable, monkeypatch, capsys):
    line = refusal(["serve", "--store", f"file://{unusable}"], monkeypatch, capsys)

    assert line.startswith(f"tokenfleet: --store 'file://{unusable}' cannot be used: ")


@pytest.mark.parametrize("part", ["blobs", "named"])
def test_a_store_with_a_file_for_a_folder_in_it_is_refused(part, tmp_path, monkeypatch, capsys):
    (tmp_path / part).touch()

    line = refusal(["serve", "--store", f"file://{tmp_path}"], monkeypatch, capsys)

    assert line.endswith(f"cannot be used: {tmp_path / part} is not a folder")


def test_a_cache_that_cannot_be_written_is_refused(unusable, monkeypatch, capsys):
    line = refusal(["serve", "--ec", f"directory://{unusable}"], monkeypatch, capsys)

    assert line.startswith(f"tokenfleet: --ec 'directory://{unusable}' cannot be used: ")


def test_a_bucket_that_does_not_answer_is_refused(monkeypatch, capsys):
    for name, value in BUCKET.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr("runtime.storage.object_blobs._RETRY", {"max_retries": 0})
    monkeypatch.setattr("runtime.storage.object_blobs._CLIENT", {"allow_http": True})

    line = refusal(["serve", "--store", "s3://bucket/prefix"], monkeypatch, capsys)

    assert line.startswith("tokenfleet: --store 's3://bucket/prefix' cannot be used: ")


def test_a_full_disk_is_no_reason_not_to_start(tmp_path, monkeypatch):
    def full(*_: object, **__: object) -> str:
        raise OSError(errno.ENOSPC, "No space left on device", str(tmp_path))

    monkeypatch.setattr("runtime.storage.files._write_aside", full)

    assert isinstance(open_blobs(tmp_path.as_uri()), FileBlobs)


def test_looking_leaves_nothing_behind(tmp_path):
    open_blobs(tmp_path.as_uri())

    assert [path.name for path in tmp_path.rglob("*") if path.is_file()] == []


def test_a_port_that_is_taken_is_named(monkeypatch, capsys):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        line = refusal(["serve", "--port", str(port)], monkeypatch, capsys)

    assert str(port) in line


def test_a_process_says_it_too():
    """The same from outside, where nothing but stderr and the exit code is seen."""
    command = [sys.executable, "-m", "tokenfleet", "ingress", str(MODEL)]
    bus = ["--bus", f"kafka://127.0.0.1:{free_port()}", *FILE]

    done = subprocess.run(
        [*command, *bus, "--log-level", "error"],
        capture_output=True,
        text=True,
        timeout=60,
        env=environment(),
    )

    assert done.returncode == 2
    (line,) = done.stderr.splitlines()
    assert line.startswith("tokenfleet: --bus")
