"""What one process runs: its roles and their settings, checked before anything is opened. Pure."""

from dataclasses import dataclass
from enum import StrEnum
from typing import Literal
from urllib.parse import urlsplit

from runtime.bus import servers_of
from runtime.errors import SettingsError
from runtime.settings import (
    EngineSettings,
    FleetSettings,
    HealthSettings,
    IngressSettings,
    ModelSettings,
    RenderSettings,
)


class Role(StrEnum):
    COORDINATOR = "coordinator"
    RENDER = "render"
    ENCODE = "encode"
    PREFILL = "prefill"
    DERENDER = "derender"
    INGRESS = "ingress"


WHOLE_FLEET = frozenset(Role)
RENDER_SERVER = frozenset({Role.COORDINATOR, Role.RENDER, Role.DERENDER, Role.INGRESS})
ENGINES = frozenset({Role.ENCODE, Role.PREFILL})


HEALTH_PORTS = {
    Role.COORDINATOR: 9101,
    Role.RENDER: 9102,
    Role.ENCODE: 9103,
    Role.PREFILL: 9104,
    Role.DERENDER: 9105,
}
"""Where a role without HTTP front answers probes and scrapers, unless told otherwise."""


@dataclass(frozen=True, slots=True)
class Plan:
    """One process of a fleet."""

    roles: frozenset[Role]
    fleet: FleetSettings
    model: ModelSettings
    render: RenderSettings
    engine: EngineSettings
    ingress: IngressSettings
    health: HealthSettings
    mode: Literal["serve", "render"] = "serve"
    """Which HTTP front: the standard server, or the one without a model behind it."""
    is_scale_out: bool = True
    process: int | None = None
    """Its number among the server processes behind one port; None: there is no other."""

    @property
    def command(self) -> str:
        """What a user types to run it."""
        if self.roles == WHOLE_FLEET:
            return "serve"
        if self.mode == "render":
            return "launch render"
        (role, *_) = sorted(self.roles)
        return role.value if role in (Role.COORDINATOR, Role.INGRESS) else f"worker {role.value}"

    @property
    def health_port(self) -> int:
        """The default; 0, any, for a process of several roles."""
        roles = tuple(self.roles)
        return HEALTH_PORTS.get(roles[0], 0) if len(roles) == 1 else 0

    @property
    def is_alone(self) -> bool:
        """Whether all that a request needs is in this process."""
        return not servers_of(self.fleet.bus)


def checked(plan: Plan) -> Plan:
    """Raise SettingsError for a combination that could only fail later."""
    if plan.roles & ENGINES and (plan.ingress.api_server_count or 1) > 1:
        raise SettingsError(
            "--api-server-count: the engine lives in this one process; run roles of their own on"
            " --bus kafka://host:port to scale, or `launch render`"
        )
    if plan.roles not in (WHOLE_FLEET, RENDER_SERVER):
        require_broker(plan.command, plan.fleet)
    if not plan.is_alone and urlsplit(plan.fleet.store).scheme == "memory":
        raise SettingsError(
            "--store memory:/// cannot be read by other processes; give --store file:///path"
            " or s3://bucket/prefix"
        )
    shares_cache = plan.roles & ENGINES and not plan.is_alone
    if shares_cache and not plan.engine.ec and not plan.engine.ec_transfer_config:
        raise SettingsError(
            "encode and prefill in separate processes share an encoder cache: give"
            " --ec directory:///path"
        )
    return plan


def require_broker(command: str, fleet: FleetSettings) -> None:
    """SettingsError where a command that has to do with other processes is given no broker."""
    if not servers_of(fleet.bus):
        raise SettingsError(
            f"{command} needs --bus kafka://host:port: --bus memory:// connects nothing outside"
            " one process"
        )
