"""Turns settings groups into command-line options and environment variables, and back into groups.

Every field is a flag and a variable; flags win over variables, variables over defaults.
"""

import inspect
import json
import os
import types
from collections.abc import Callable, Mapping, Sequence, Set
from typing import Annotated, Any, Literal, TypeVar, Union, get_args, get_origin

import typer
from pydantic import ValidationError
from pydantic.fields import FieldInfo

from runtime.errors import SettingsError
from runtime.settings import Group

PREFIX = "TOKENFLEET_"
GroupT = TypeVar("GroupT", bound=Group)


class Values(dict[str, Any]):
    """Option values by field name; absent where neither flag nor variable was given."""

    def group(self, kind: type[GroupT], **overrides: Any) -> GroupT:
        """One validated group. Raise SettingsError listing every problem in a line each."""
        given = {name: self[name] for name in kind.model_fields if name in self}
        try:
            return kind.model_validate(given | overrides)
        except ValidationError as error:
            raise SettingsError(_problems(error)) from None


def with_options(
    command: Callable[..., None],
    groups: Sequence[type[Group]],
    *,
    leave_out: Sequence[str] = (),
    defaults: Mapping[str, Any] | None = None,
    foreign: Set[str] = frozenset(),
) -> Callable[..., None]:
    """Give a command `(values: Values, …)` an option for every field of the groups.

    `defaults` are this command's own, where they differ from the groups'. `foreign` fields are
    taken, so that all roles of a fleet can be started with the same flags, and not shown.
    """
    defaults = defaults or {}
    fields = {
        name: field
        for group in groups
        for name, field in group.model_fields.items()
        if name not in leave_out
    }
    own = [p for p in inspect.signature(command).parameters.values() if p.name != "values"]

    def run(**given: Any) -> None:
        options = {name: given.pop(name) for name in fields}
        values = {
            name: _parsed(name, fields[name], value)
            for name, value in options.items()
            if value not in (None, [], ())
        }
        command(values=Values({**defaults, **values}), **given)

    parameters = own + [
        _parameter(name, field, defaults.get(name), is_hidden=name in foreign)
        for name, field in fields.items()
    ]
    parameters = [p.replace(kind=inspect.Parameter.KEYWORD_ONLY) for p in parameters]
    run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    run.__annotations__ = {p.name: p.annotation for p in parameters}
    run.__doc__ = command.__doc__
    run.__name__ = command.__name__
    return run


def flag(name: str) -> str:
    return "--" + name.replace("_", "-")


def variable(name: str) -> str:
    return PREFIX + name.upper()


def unknown_variables(environ: Mapping[str, str], groups: Sequence[type[Group]]) -> list[str]:
    """Variables with our prefix that no setting has: most likely a typing error."""
    known = {variable(name) for group in groups for name in group.model_fields}
    return sorted(name for name in environ if name.startswith(PREFIX) and name not in known)


def expand_lists(argv: Sequence[str], list_flags: frozenset[str]) -> list[str]:
    """`--api-key a b` as vLLM takes it becomes `--api-key a --api-key b`."""
    out: list[str] = []
    repeating: str | None = None
    fresh = False
    for word in argv:
        if word in list_flags:
            repeating, fresh = word, True
        elif word.startswith("-"):
            repeating = None
        elif repeating and not fresh:
            out.append(repeating)
        else:
            fresh = False
        out.append(word)
    return out


def is_list(field: FieldInfo) -> bool:
    return any(get_origin(t) in (tuple, list) for t in _members(field.annotation))


def _parameter(name: str, field: FieldInfo, default: Any, *, is_hidden: bool) -> inspect.Parameter:
    members = _members(field.annotation)
    option: Any = {
        "help": field.description or "",
        "envvar": variable(name),
        "hidden": is_hidden,
    }
    names = (flag(name),)
    if bool in members:
        names = (f"{flag(name)}/--no-{flag(name)[2:]}",)
        annotation: Any = bool | None
    elif is_list(field):
        option["metavar"] = "TEXT ..."
        annotation = list[str] | None
    else:
        option["metavar"] = _metavar(members)
        annotation = str | None
    option["help"] = _help(field, default, option["help"])
    return inspect.Parameter(
        name,
        inspect.Parameter.KEYWORD_ONLY,
        default=None,
        annotation=Annotated[annotation, typer.Option(*names, show_default=False, **option)],
    )


def _help(field: FieldInfo, default: Any, text: str) -> str:
    if default is None:
        default = field.get_default(call_default_factory=True)
    if default in (None, (), {}, False, ""):
        return text
    return f"{text} [default: {default}]".strip()


def _metavar(members: Sequence[Any]) -> str:
    for member in members:
        if get_origin(member) is Literal:
            return "|".join(str(choice) for choice in get_args(member))
        if get_origin(member) is dict:
            return "JSON"
        if member in (int, float):
            return str(member.__name__).upper()
    return "TEXT"


def _members(annotation: Any) -> tuple[Any, ...]:
    if get_origin(annotation) in (Union, types.UnionType):
        return tuple(m for m in get_args(annotation) if m is not type(None))
    return (annotation,)


def _parsed(name: str, field: FieldInfo, value: Any) -> Any:
    """JSON for objects, commas for lists; the rest is pydantic's."""
    if is_list(field):
        words = value if isinstance(value, list) else [value]
        return tuple(w for word in words for w in str(word).split(",") if w)
    if any(get_origin(m) is dict for m in _members(field.annotation)):
        try:
            return json.loads(value)
        except ValueError as error:
            raise SettingsError(f"{flag(name)} must be a JSON object: {error}") from None
    return value


def _problems(error: ValidationError) -> str:
    lines = []
    for problem in error.errors():
        name = str(problem["loc"][0]) if problem["loc"] else ""
        got = problem["input"]
        lines.append(f"{flag(name)} ({variable(name)}): {problem['msg']}, got {got!r}")
    return "; ".join(lines)


def environment() -> Mapping[str, str]:
    """The one place, with typer's envvar, where the environment enters."""
    return os.environ
