"""The HTTP front of a process: the gateway and the server before it, as services."""

import logging
from collections.abc import Iterator, Mapping

from ingress.app import create_app
from ingress.connection import ConnectionLimits
from ingress.gateway import Gateway
from ingress.server import HttpServer
from runtime.addresses import url_of
from runtime.health import Readiness
from runtime.lifecycle import Service
from tokenfleet.shared import Shared

logger = logging.getLogger(__name__)

_GRACE_SHARE = 0.8
"""Of the time to stop: for requests to be finished in. In the rest their refusals are sent."""


class Front:
    """Made before the services start; `port` is known once they have."""

    def __init__(self, shared: Shared, readiness: Readiness) -> None:
        plan = shared.plan
        self._host = plan.ingress.host
        self._is_one_of_several = plan.process is not None
        self._model = shared.directory.served_names[0]
        self._readiness = readiness
        self.gateway = Gateway(
            shared.bus, shared.blobs, shared.topics, max_pending=plan.ingress.max_pending
        )
        app = create_app(
            plan.ingress,
            shared.directory,
            shared.limits,
            self.gateway,
            mode=plan.mode,
            is_scale_out=plan.is_scale_out,
            readiness=self._problems,
            registry=shared.telemetry.registry,
        )
        self._server = HttpServer(
            app,
            host=plan.ingress.host,
            port=plan.ingress.port,
            shutdown_timeout_s=plan.fleet.shutdown_timeout_s,
            shares_port=self._is_one_of_several,
            limits=ConnectionLimits(
                max_head_bytes=plan.ingress.max_head_bytes,
                receive_timeout_s=plan.ingress.receive_timeout_s,
                max_connections=plan.ingress.max_connections,
            ),
        )

    @property
    def port(self) -> int:
        return self._server.port

    @property
    def url(self) -> str:
        return url_of(self._host, self.port)

    def services(self) -> Iterator[Service]:
        gateway, server = self.gateway, self._server
        yield Service("gateway", gateway.start, lambda _: gateway.close(), gateway.wait)
        yield Service("http", self._listen, self._drain, server.wait)

    async def _drain(self, timeout_s: float) -> None:
        """Finish what can be finished, refuse the rest, and cut who still keeps a connection."""
        grace_s = timeout_s * _GRACE_SHARE
        if not await self._server.drain(grace_s):
            self.gateway.refuse()
            if not await self._server.drain(timeout_s - grace_s):
                self._server.abort()
        await self._server.close()

    async def _listen(self) -> None:
        await self._server.start()
        if not self._is_one_of_several:  # their parent says it once, for all of them
            logger.info("listening", extra={"url": self.url, "model": self._model})

    async def _problems(self) -> Mapping[str, str]:
        return {f"problem_{i}": text for i, text in enumerate(self._readiness.reasons())}
