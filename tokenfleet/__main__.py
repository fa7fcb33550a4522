"""Entry of the `tokenfleet` command: readable start-up errors, exit code 2."""

import sys
from typing import NoReturn

import typer

from runtime.errors import SettingsError
from runtime.lifecycle import EXIT_SETTINGS
from tokenfleet.cli import ALL_GROUPS, app
from tokenfleet.options import environment, expand_lists, flag, is_list, unknown_variables
from tokenfleet.refusals import reason_of


def main() -> None:
    try:
        _refuse_unknown_variables()
        app(expand_lists(sys.argv[1:], _list_flags()))
    except (SettingsError, ModuleNotFoundError) as error:
        reason = reason_of(error)
        if reason is None:
            raise
        _refuse(reason)


def _refuse(reason: str) -> NoReturn:
    typer.echo(f"tokenfleet: {reason}", err=True)
    sys.exit(EXIT_SETTINGS)


def _refuse_unknown_variables() -> None:
    unknown = unknown_variables(environment(), ALL_GROUPS)
    if unknown:
        raise SettingsError(f"unknown variable {', '.join(unknown)}: no setting has that name")


def _list_flags() -> frozenset[str]:
    fields = (item for group in ALL_GROUPS for item in group.model_fields.items())
    return frozenset(flag(name) for name, field in fields if is_list(field))


if __name__ == "__main__":
    main()
