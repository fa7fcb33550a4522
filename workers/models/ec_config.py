"""Reads vLLM's `--ec-transfer-config` (05 §1, §3): where embeddings lie and what this process does.

Pure; touches no directory. Imports no torch.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal
from urllib.parse import quote

from runtime.errors import SettingsError

Role = Literal["producer", "consumer", "both"]
_ROLES: dict[str, Role] = {
    "ec_producer": "producer",
    "ec_consumer": "consumer",
    "ec_both": "both",
}
_CONNECTOR = "ECExampleConnector"
_DEFAULT_PATH = "/tmp"


@dataclass(frozen=True, slots=True)
class EcTransfer:
    """What the configuration asks for."""

    url: str
    """directory:///…, as `--ec` takes it."""
    role: Role
    is_flat: bool = True
    """vLLM's layout: entries lie under the root itself, in no namespace."""

    @property
    def stage(self) -> Literal["encode", "prefill"] | None:
        """The one stage that answers generate requests; None: both, as needed."""
        if self.role == "both":
            return None
        return "encode" if self.role == "producer" else "prefill"


def read_ec_transfer_config(config: Mapping[str, Any] | None) -> EcTransfer | None:
    """None where nothing is configured. SettingsError for what vLLM or we do not know."""
    connector = (config or {}).get("ec_connector")
    if config is None or connector is None:
        return None
    if connector != _CONNECTOR:
        raise SettingsError(
            f"ec_transfer_config: connector {connector!r} is not supported; use {_CONNECTOR}"
        )
    role = _ROLES.get(str(config.get("ec_role")))
    if role is None:
        raise SettingsError(f"ec_transfer_config: ec_role must be one of {', '.join(_ROLES)}")
    extra = config.get("ec_connector_extra_config") or {}
    if not isinstance(extra, Mapping):
        raise SettingsError("ec_transfer_config: ec_connector_extra_config must be an object")
    path = extra.get("shared_storage_path", _DEFAULT_PATH)
    if not isinstance(path, str) or not path:
        raise SettingsError("ec_transfer_config: shared_storage_path must be a path")
    return EcTransfer(url=f"directory://{quote(str(Path(path).absolute()))}", role=role)
