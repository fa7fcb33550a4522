"""Routes of vLLM's servers that the fleet does not serve: listed, and refused in words.

A client that finds 501 here knows that the feature is missing; 404 would look like a wrong
address.
"""

from starlette.requests import Request
from starlette.responses import Response

from ingress.probes import Route
from ingress.relay import refuse
from ingress.scale_out import Mode
from schemas.refusals import bad_request, not_implemented

ABORT = ("POST", "/inference/v1/abort_requests")
STANDARD = (
    ("POST", "/invocations"),
    ("POST", "/generative_scoring"),
    ("POST", "/is_scaling_elastic_ep"),
    ("POST", "/scale_elastic_ep"),
    ("POST", "/v1/chat/completions/batch"),
    ("POST", "/v1/messages"),
    ("POST", "/v1/messages/count_tokens"),
    ("POST", "/v1/responses"),
    ("GET", "/v1/responses/{response_id}"),
    ("POST", "/v1/responses/{response_id}/cancel"),
    ("POST", "/v1/systemone"),
)
RENDER = (("POST", "/v1/systemone"),)


def unserved_routes(mode: Mode, *, is_scale_out: bool) -> list[Route]:
    if mode == "serve":
        abort = unserved if is_scale_out else refuse
        return [(*ABORT, abort), *((method, path, unserved) for method, path in STANDARD)]
    refused = [(method, path, unserved) for method, path in RENDER]
    return [*refused, ("POST", "/invocations", _no_handler)]


async def unserved(request: Request) -> Response:
    """Not served: answers 501."""
    raise not_implemented(f"{request.url.path} is not supported by this server.")


async def _no_handler() -> Response:
    """A render server runs no model that could be invoked."""
    raise bad_request("Cannot find suitable handler for request. Expected one of: []")
