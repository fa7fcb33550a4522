"""Which flags a command takes, and which of them are its own: data."""

from collections.abc import Iterator, Mapping, Set
from dataclasses import dataclass

from runtime.settings import (
    EngineSettings,
    FleetSettings,
    Group,
    HealthSettings,
    IngressSettings,
    ModelSettings,
    RenderSettings,
)

Fields = Set[str] | None
"""None: all of a group."""

_LIMITS = {"served_model_name", "max_model_len", "max_logprobs", "max_num_seqs"}
_SAMPLING = {"generation_config", "override_generation_config"}
_PARSERS = {"tool_call_parser", "reasoning_parser", "enable_auto_tool_choice"}
_CACHE = {"ec", "ec_transfer_config"}
_STORE_IN_MEMORY = {"store_memory_bytes"}
_ADMISSION = {"trusted_tenants"}
_WORKER = set(FleetSettings.model_fields) - _STORE_IN_MEMORY - _ADMISSION
_LOOP = {"max_in_flight", "max_in_flight_bytes", "max_attempts", "session_timeout_ms"}
_HTTP = set(IngressSettings.model_fields) - {"response_role"}


@dataclass(frozen=True, slots=True)
class Flags:
    """The groups of a command, each with the fields that do something there."""

    own: Mapping[type[Group], Fields]

    @property
    def groups(self) -> tuple[type[Group], ...]:
        return tuple(self.own)

    @property
    def foreign(self) -> frozenset[str]:
        """Taken, so that all roles of a fleet can be started alike, and not shown."""
        return frozenset(self._foreign())

    def _foreign(self) -> Iterator[str]:
        for group, fields in self.own.items():
            if fields is not None:
                yield from group.model_fields.keys() - fields


def _role(
    *,
    fleet: Fields = frozenset(_WORKER),
    model: Fields,
    ingress: Fields = frozenset(),
    render: Fields = frozenset(),
    engine: Fields = frozenset(),
    health: Fields = None,
) -> Flags:
    return Flags(
        {
            ModelSettings: model,
            FleetSettings: fleet,
            HealthSettings: health,
            IngressSettings: ingress,
            RenderSettings: render,
            EngineSettings: engine,
        }
    )


SERVE = _role(fleet=None, model=None, ingress=None, render=None, engine=None, health=set())
RENDER_SERVER = _role(
    fleet=None,
    model=set(ModelSettings.model_fields) - {"max_num_seqs"},
    ingress=None,
    render=None,
    engine=_CACHE,
    health=set(),
)
COORDINATOR = _role(fleet=_WORKER | _ADMISSION, model=_LIMITS, ingress={"request_timeout_s"})
INGRESS = _role(
    fleet=_WORKER - _LOOP,
    model=_LIMITS,
    ingress=_HTTP,
    engine={"ec_transfer_config"},
    health=set(),
)
RENDER = _role(model=None, render=None, engine=_CACHE)
ENCODE = _role(
    model={"served_model_name", "dtype"}, engine={*_CACHE, "ec_params_format", "engine_threads"}
)
PREFILL = _role(model={*_LIMITS, *_SAMPLING, "dtype"}, engine=None)
DERENDER = _role(
    model=_LIMITS | _PARSERS,
    ingress={"response_role"},
    render={"default_chat_template_kwargs"},
    engine={"stop_scope"},
)
TOPICS = Flags(
    {FleetSettings: {"bus", "topic_prefix", "num_partitions", "log_level", "log_format"}}
)
