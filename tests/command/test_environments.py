"""Roles in environments of their own: a wheel, the extra that a role needs, and nothing else."""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.fleet.processes import environment
from tokenfleet.extras import needed_extras
from tokenfleet.plan import WHOLE_FLEET, Role

ROOT = Path(__file__).resolve().parents[2]
UV = Path(sys.executable).with_name("uv")
INSTALL_S = 600
RUN_S = 240

pytestmark = pytest.mark.timeout(INSTALL_S)

# Starts one role as its command does, on a bus within the process, and lists what it has loaded.
START = """
import asyncio, json, os, sys
from runtime.settings import *
from tokenfleet.demo_model import DEMO_NAME, demo_model
from tokenfleet.fleet import Fleet
from tokenfleet.plan import Plan, Role
from tokenfleet.shared import open_shared

plan = Plan(
    roles=frozenset({Role(sys.argv[1])}),
    fleet=FleetSettings(),
    model=ModelSettings(model=str(demo_model()), served_model_name=(DEMO_NAME,), dtype="float32"),
    render=RenderSettings(),
    engine=EngineSettings(engine_threads=1),
    ingress=IngressSettings(port=0),
    health=HealthSettings(health_port=0),
)

async def main():
    async with Fleet(open_shared(plan, os.environ)) as fleet:
        print(json.dumps([fleet.readiness.reasons(), list(sys.modules)]))

asyncio.run(main())
"""

EXTRA_OF = {
    Role.COORDINATOR: "",
    Role.DERENDER: "",
    Role.INGRESS: "ingress",
    Role.RENDER: "render",
    Role.ENCODE: "engine",
    Role.PREFILL: "engine",
}
# What only others need, and must not be loaded even where it is installed.
FOREIGN = {
    Role.COORDINATOR: {"fastapi", "uvicorn", "numpy", "PIL", "torch", "transformers", "av"},
    Role.DERENDER: {"fastapi", "uvicorn", "numpy", "PIL", "torch", "transformers", "av"},
    Role.INGRESS: {"numpy", "PIL", "torch", "transformers", "av"},
    Role.RENDER: {"fastapi", "uvicorn", "transformers"},
    Role.ENCODE: {"fastapi", "uvicorn", "aiohttp", "av"},
    Role.PREFILL: {"fastapi", "uvicorn", "aiohttp", "av"},
}
KAFKA = ("--bus", "kafka://127.0.0.1:1", "--store", "file:///tmp", "--ec", "directory:///tmp")
LACKING = {
    "ingress": ("ingress", *KAFKA),
    "render": ("worker", "render", *KAFKA),
    "engine": ("worker", "prefill", *KAFKA),
    "ingress,render": ("launch", "render"),
    "ingress,render,engine": ("serve",),
}


def uv(*arguments: str | Path) -> None:
    """Skip, or fail in CI, where packages cannot be had."""
    if not UV.exists():
        _not_here(f"{UV} is missing")
    done = subprocess.run([UV, *arguments], capture_output=True, text=True, timeout=INSTALL_S)
    if done.returncode:
        _not_here(f"uv {arguments[0]} failed: {done.stderr.strip()[-500:]}")


def _not_here(reason: str) -> None:
    if os.environ.get("CI"):
        pytest.fail(f"CI needs fresh environments: {reason}", pytrace=False)
    pytest.skip(reason)


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    # From a source distribution: nothing that an earlier build left in the checkout gets in.
    uv("build", "--quiet", "--out-dir", folder, ROOT)
    (built,) = folder.glob("*.whl")
    return built


@pytest.fixture(scope="module")
def python(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """The interpreter of an environment with one extra, made when it is first asked for."""
    made: dict[str, Path] = {}

    def of(extra: str) -> Path:
        if extra not in made:
            folder = tmp_path_factory.mktemp(f"env-{extra}")
            interpreter = folder / "bin" / "python"
            package = f"tokenfleet[{extra}] @ {wheel.as_uri()}" if extra else wheel
            uv("venv", "--quiet", "--python", sys.executable, "--clear", folder)
            install = ("pip", "install", "--quiet", "--python", interpreter)
            uv(*install, "-c", ROOT / "constraints.txt", package)
            made[extra] = interpreter
        return made[extra]

    return of


def run(python: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Outside the checkout, so that only what is installed is found."""
    return subprocess.run(
        [python, "-P", *arguments],
        capture_output=True,
        text=True,
        timeout=RUN_S,
        cwd=python.parent,
        env={k: v for k, v in environment().items() if k != "PYTHONPATH"},
    )


@pytest.mark.parametrize("role", Role)
def test_a_role_starts_with_its_extra_alone_and_loads_nothing_of_others(role, python):
    done = run(python(EXTRA_OF[role]), "-c", START, role.value)

    assert done.returncode == 0, done.stderr
    reasons, loaded = json.loads(done.stdout)
    assert reasons == []
    assert FOREIGN[role].isdisjoint(loaded)


@pytest.mark.parametrize("role", [Role.COORDINATOR, Role.DERENDER, Role.INGRESS, Role.RENDER])
def test_a_role_loads_nothing_of_others_where_everything_is_installed(role):
    """The environment of these tests has it all."""
    done = subprocess.run(
        [sys.executable, "-c", START, role.value],
        capture_output=True,
        text=True,
        timeout=RUN_S,
        cwd=ROOT,
        env=environment(),
    )

    assert done.returncode == 0, done.stderr
    assert FOREIGN[role].isdisjoint(json.loads(done.stdout)[1])


@pytest.mark.parametrize(("extras", "command"), LACKING.items(), ids=LACKING)
def test_a_missing_extra_is_one_line_that_says_what_to_install(extras, command, python):
    done = run(python(""), "-m", "tokenfleet", *command)

    words = " ".join(word for word in command[:2] if not word.startswith("-"))
    noun = "extras" if "," in extras else "extra"
    assert done.returncode == 2
    assert done.stderr == (
        f"tokenfleet: {words} needs the {noun}: pip install 'tokenfleet[{extras}]'\n"
    )


def test_an_installation_without_extras_has_its_help_and_names_a_broker_that_is_away(python):
    assert run(python(""), "-m", "tokenfleet", "worker", "render", "--help").returncode == 0

    done = run(python(""), "-m", "tokenfleet", "coordinator", *KAFKA)
    assert done.returncode == 2
    assert "no broker answers" in done.stderr.splitlines()[-1]


def test_an_installed_wheel_answers_about_the_pictures_that_ship_with_it(python):
    done = run(python("all"), "-m", "tokenfleet", "demo")

    assert done.returncode == 0, done.stderr
    assert "A red circle at the top left" in done.stdout


def test_a_text_model_is_rendered_without_libraries_for_pictures():
    assert needed_extras({Role.RENDER}, takes_media=False) == []
    assert needed_extras({Role.RENDER}, takes_media=True) == ["render"]
    assert needed_extras(WHOLE_FLEET, takes_media=True) == ["ingress", "render", "engine"]
