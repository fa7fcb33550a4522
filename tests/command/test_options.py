"""Flags and variables: one of each per setting, flags win, mistakes are named."""

import re

import pytest
import typer
from typer.testing import CliRunner

from runtime.errors import SettingsError
from runtime.settings import FleetSettings, IngressSettings, ModelSettings, RenderSettings
from tokenfleet import flags
from tokenfleet.__main__ import _list_flags, main
from tokenfleet.cli import ALL_GROUPS, app
from tokenfleet.options import Values, expand_lists, flag, unknown_variables, variable, with_options

GROUPS = (FleetSettings, ModelSettings, IngressSettings, RenderSettings)


def given(*arguments: str, env: dict[str, str] | None = None, **options: object) -> Values:
    """The values that a command gets for these arguments."""
    seen: list[Values] = []

    def command(values: Values) -> None:
        seen.append(values)

    app = typer.Typer()
    app.command()(with_options(command, GROUPS, leave_out=("model",), **options))
    result = CliRunner().invoke(app, arguments, env=env, catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return seen[0]


def test_what_is_not_given_is_absent():
    assert given() == {}


def test_a_flag_wins_over_its_variable():
    env = {"TOKENFLEET_BUS": "kafka://a:1"}

    assert given(env=env).group(FleetSettings).bus == "kafka://a:1"
    assert given("--bus", "kafka://b:2", env=env).group(FleetSettings).bus == "kafka://b:2"


def test_a_commands_own_default_gives_way_to_the_flag():
    assert given(defaults={"port": 8100}).group(IngressSettings).port == 8100
    assert given("--port", "1", defaults={"port": 8100}).group(IngressSettings).port == 1


def test_objects_are_json_and_lists_are_repeated_or_separated_by_commas():
    values = given(
        "--limit-mm-per-prompt",
        '{"image": 2}',
        "--served-model-name",
        "a",
        "--served-model-name",
        "b",
    )
    by_variable = given(env={"TOKENFLEET_SERVED_MODEL_NAME": "a,b"})

    model = values.group(ModelSettings, model="m")
    assert model.limit_mm_per_prompt == {"image": 2}
    assert model.served_model_name == ("a", "b")
    assert by_variable.group(ModelSettings, model="m").served_model_name == ("a", "b")


def test_switches_have_both_forms():
    assert (
        given("--no-mm-device-do-normalize").group(RenderSettings).mm_device_do_normalize is False
    )
    assert given("--enable-scale-out").group(IngressSettings).enable_scale_out is True


def test_every_problem_is_named_with_flag_and_variable():
    values = Values({"port": "x", "request_timeout_s": -1})

    with pytest.raises(SettingsError) as caught:
        values.group(IngressSettings)

    assert "--port (TOKENFLEET_PORT)" in str(caught.value)
    assert "--request-timeout-s (TOKENFLEET_REQUEST_TIMEOUT_S)" in str(caught.value)


def test_vllms_way_of_listing_is_understood():
    flags = frozenset({"--api-key"})

    assert expand_lists(["serve", "--api-key", "a", "b", "--port", "1", "c"], flags) == [
        "serve", "--api-key", "a", "--api-key", "b", "--port", "1", "c",
    ]  # fmt: skip
    assert "--served-model-name" in _list_flags()


def test_a_misspelt_variable_is_found():
    environ = {"TOKENFLEET_BUSS": "x", "TOKENFLEET_BUS": "y", "PATH": "z"}

    assert unknown_variables(environ, ALL_GROUPS) == ["TOKENFLEET_BUSS"]


def test_no_two_settings_share_a_flag():
    names = [name for group in ALL_GROUPS for name in group.model_fields]

    assert len(set(map(flag, names))) == len(set(map(variable, names))) == len(names)


def test_a_missing_extra_is_named(monkeypatch, capsys):
    def app(arguments: list[str]) -> None:
        raise ModuleNotFoundError("No module named 'PIL'", name="PIL")

    monkeypatch.setattr("tokenfleet.__main__.app", app)

    with pytest.raises(SystemExit) as caught:
        main()

    assert caught.value.code == 2
    assert (
        capsys.readouterr().err
        == "tokenfleet: PIL is not installed: pip install 'tokenfleet[render]'\n"
    )


COMMANDS = {
    "serve": flags.SERVE,
    "launch render": flags.RENDER_SERVER,
    "coordinator": flags.COORDINATOR,
    "ingress": flags.INGRESS,
    "worker render": flags.RENDER,
    "worker encode": flags.ENCODE,
    "worker prefill": flags.PREFILL,
    "worker derender": flags.DERENDER,
    "topics create": flags.TOPICS,
}


def test_every_setting_has_words():
    silent = [
        name
        for group in ALL_GROUPS
        for name, field in group.model_fields.items()
        if not field.description
    ]

    assert silent == []


@pytest.mark.parametrize("command", COMMANDS)
def test_a_command_shows_its_own_flags_and_takes_those_of_its_neighbours(command):
    taken = COMMANDS[command]
    fields = {name for group in taken.groups for name in group.model_fields} - {"model"}
    result = CliRunner(env={"COLUMNS": "200"}).invoke(app, [*command.split(), "--help"])
    shown = set(re.findall(r"^  (--[a-z][a-z0-9-]*)", result.output, re.MULTILINE)) - {"--help"}

    assert result.exit_code == 0
    assert shown == {flag(name) for name in fields - taken.foreign}


def test_roles_do_not_show_what_does_nothing_there():
    assert {"port", "engine_threads", "chat_template"} <= flags.COORDINATOR.foreign
    assert {"port", "chat_template", "render_threads"} <= flags.ENCODE.foreign
    assert {"engine_threads", "trusted_tenants", "max_in_flight"} <= flags.INGRESS.foreign
    assert "response_role" not in flags.DERENDER.foreign


@pytest.mark.parametrize("command", COMMANDS)
def test_own_flags_are_settings_that_exist(command):
    for group, fields in COMMANDS[command].own.items():
        assert fields is None or fields <= group.model_fields.keys()
