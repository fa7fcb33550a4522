"""The access log: one line for each request, with the caller's id beside ours."""

import logging
from typing import Any

from starlette.datastructures import Headers
from starlette.types import Scope

from ingress.connection import address
from ingress.http_metrics import QUIET

logger = logging.getLogger(__name__)

_MAX_PATH = 200
_MAX_ID = 128


def log_access(scope: Scope, status: int, sent_bytes: int, took_s: float) -> None:
    """Probes are told at debug level, or they would drown the rest.

    What a caller chose is cut, and the path told as it was sent, without control characters.
    """
    level = logging.DEBUG if scope["path"] in QUIET else logging.INFO
    if not logger.isEnabledFor(level):
        return
    state = scope.get("state") or {}
    fields: dict[str, Any] = {
        "method": scope["method"],
        "path": scope.get("raw_path", b"").decode("ascii", "replace")[:_MAX_PATH],
        "status": status,
        "duration_ms": round(took_s * 1000, 1),
        "received_bytes": state.get("received_bytes", 0),
        "sent_bytes": sent_bytes,
        "client": address(scope.get("client")),
    }
    if (ours := state.get("request_id")) is not None:
        fields["request_id"] = ours
    if (theirs := Headers(scope=scope).get("x-request-id")) is not None:
        fields["caller_request_id"] = theirs[:_MAX_ID]
    logger.log(level, "http_request", extra=fields)
