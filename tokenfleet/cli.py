"""The `tokenfleet` command: options in, one process of a fleet running."""

from collections.abc import Callable, Sequence
from importlib.metadata import version
from typing import Annotated, Any

import typer

from ingress.scale_out import VARIABLE, Mode, scale_out
from runtime.lifecycle import EXIT_FAILED, EXIT_OK
from runtime.settings import (
    EngineSettings,
    FleetSettings,
    Group,
    HealthSettings,
    IngressSettings,
    ModelSettings,
    RenderSettings,
)
from tokenfleet import flags
from tokenfleet.demo_model import DEMO_NAME, demo_model, is_demo_model
from tokenfleet.flags import Flags
from tokenfleet.options import Values, environment, with_options
from tokenfleet.plan import RENDER_SERVER, WHOLE_FLEET, Plan, Role, checked, require_broker
from workers.models.ec_config import read_ec_transfer_config

ALL_GROUPS: tuple[type[Group], ...] = (
    ModelSettings, FleetSettings, IngressSettings, RenderSettings, EngineSettings, HealthSettings,
)  # fmt: skip

ABOUT = "Serve multimodal LLM requests as a fleet of render, encode, prefill and derender workers."

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    help=ABOUT,
)
launch = typer.Typer(
    no_args_is_help=True, rich_markup_mode=None, help="Start a server for one part of the work."
)
worker = typer.Typer(
    no_args_is_help=True, rich_markup_mode=None, help="Run one stage as a worker on Kafka."
)
topics = typer.Typer(
    no_args_is_help=True, rich_markup_mode=None, help="Look after the fleet's Kafka topics."
)
app.add_typer(launch, name="launch")
app.add_typer(worker, name="worker")
app.add_typer(topics, name="topics")

Model = Annotated[
    str | None,
    typer.Argument(
        metavar="[MODEL]",
        envvar="TOKENFLEET_MODEL",
        help="Model directory; the demo model when left out.",
        show_default=False,
    ),
]


def make_plan(values: Values, roles: frozenset[Role], model: str | None, mode: Mode) -> Plan:
    """Every group validated, and the plan checked. Raise SettingsError with readable lines."""
    ingress = values.group(IngressSettings, **_vllm_api_key(values))
    engine = values.group(EngineSettings)
    ec_transfer = read_ec_transfer_config(engine.ec_transfer_config)
    if ec_transfer is not None and ingress.generate_stage is None:
        ingress = ingress.model_copy(update={"generate_stage": ec_transfer.stage})
    is_enabled = ingress.enable_scale_out or "generate_stage" in values
    model = model or str(demo_model())
    return checked(
        Plan(
            roles=roles,
            fleet=values.group(FleetSettings),
            model=values.group(ModelSettings, model=model, **_served_names(values, model)),
            render=values.group(RenderSettings),
            engine=engine,
            ingress=ingress,
            health=values.group(HealthSettings),
            mode=mode,
            is_scale_out=scale_out(mode, is_enabled, environment().get(VARIABLE)),
        )
    )


def _vllm_api_key(values: Values) -> dict[str, Any]:
    """vLLM's own variable, where neither flag nor ours is given."""
    key = environment().get("VLLM_API_KEY")
    return {"api_key": (key,)} if key and "api_key" not in values else {}


def _served_names(values: Values, model: str) -> dict[str, Any]:
    """The demo model has one name, however it was found; others that of vLLM: as typed."""
    is_unnamed = is_demo_model(model) and not values.get("served_model_name")
    return {"served_model_name": (DEMO_NAME,)} if is_unnamed else {}


def _run(values: Values, roles: frozenset[Role], model: str | None, mode: Mode = "serve") -> None:
    from tokenfleet.start import start

    raise typer.Exit(start(make_plan(values, roles, model, mode)))


def serve(values: Values, model: Model = None) -> None:
    """Run the whole fleet in one process, with vLLM's and OpenAI's HTTP in front."""
    _run(values, WHOLE_FLEET, model)


def launch_render(values: Values, model: Model = None) -> None:
    """Run the server that renders and derenders and needs no weights."""
    _run(values, RENDER_SERVER, model, "render")


def coordinator(values: Values, model: Model = None) -> None:
    """Run a coordinator: admits requests and decides what may travel where."""
    _run(values, frozenset({Role.COORDINATOR}), model)


def ingress(values: Values, model: Model = None) -> None:
    """Run an HTTP front for a fleet on Kafka."""
    _run(values, frozenset({Role.INGRESS}), model)


def _worker(role: Role) -> Callable[..., None]:
    def run_worker(values: Values, model: Model = None) -> None:
        _run(values, frozenset({role}), model)

    run_worker.__doc__ = f"Run a {role.value} worker."
    return run_worker


def topics_create(values: Values) -> None:
    """Create the topics that are missing, and report those that are not as they should be.

    Exit code 1 where one takes too small records, or has another number of partitions than
    --num-partitions asks for.
    """
    from tokenfleet.topics import create_topics

    fleet = values.group(FleetSettings)
    require_broker("topics create", fleet)
    report = create_topics(fleet)
    for name in report.created:
        typer.echo(f"created {name}")
    for line in (*report.other_counts, *report.too_small):
        typer.echo(f"tokenfleet: {line}", err=True)
    is_as_asked = not (report.other_counts and "num_partitions" in values)
    raise typer.Exit(EXIT_OK if is_as_asked and not report.too_small else EXIT_FAILED)


def demo() -> None:
    """Start a fleet in this process, ask it about pictures, show what each stage gets and gives."""
    from tokenfleet.demo import run_demo

    raise typer.Exit(run_demo())


def show_version(value: bool) -> None:
    if value:
        typer.echo(version("tokenfleet"))
        raise typer.Exit


@app.callback()
def main_options(
    is_version: Annotated[
        bool,
        typer.Option("--version", callback=show_version, is_eager=True, help="Show the version."),
    ] = False,
) -> None:
    """The options of the command itself; its help is the app's."""


_COMMANDS: Sequence[tuple[typer.Typer, str, Callable[..., None], Flags]] = (
    (app, "serve", serve, flags.SERVE),
    (launch, "render", launch_render, flags.RENDER_SERVER),
    (app, "coordinator", coordinator, flags.COORDINATOR),
    (app, "ingress", ingress, flags.INGRESS),
    (worker, "render", _worker(Role.RENDER), flags.RENDER),
    (worker, "encode", _worker(Role.ENCODE), flags.ENCODE),
    (worker, "prefill", _worker(Role.PREFILL), flags.PREFILL),
    (worker, "derender", _worker(Role.DERENDER), flags.DERENDER),
    (topics, "create", topics_create, flags.TOPICS),
)
for parent, name, command, taken in _COMMANDS:
    defaults = {"port": 8100} if command is launch_render else {}
    options = with_options(
        command, taken.groups, leave_out=("model",), defaults=defaults, foreign=taken.foreign
    )
    parent.command(name)(options)
app.command("demo")(demo)
