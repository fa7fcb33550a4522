"""Routes of vLLM's servers that the fleet does not serve: listed, and refused in words.

A client that finds 501 here knows that the feature is missing; 404 would look like a wrong
address.
"""

import json
from collections.abc import Awaitable, Callable

from starlette.requests import Request
from starlette.responses import Response

from ingress.bodies import BodyBudget
from ingress.probes import Route
from ingress.relay import refuse
from ingress.scale_out import Mode
from schemas.refusals import bad_request, not_implemented, schema_error

MAX_ABORT_BYTES = 1024 * 1024
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


def unserved_routes(mode: Mode, budget: BodyBudget, *, is_scale_out: bool) -> list[Route]:
    if mode == "serve":
        abort = _abort_endpoint(budget) if is_scale_out else refuse
        return [(*ABORT, abort), *((method, path, unserved) for method, path in STANDARD)]
    refused = [(method, path, unserved) for method, path in RENDER]
    return [*refused, ("POST", "/invocations", _no_handler)]


def _abort_endpoint(budget: BodyBudget) -> Callable[[Request], Awaitable[Response]]:
    """Checks the body as vLLM does (03 §8); aborts themselves are not served."""

    async def abort_requests(request: Request) -> Response:
        with budget.body() as body:
            _check_abort(await body.read(request, MAX_ABORT_BYTES))
        return await unserved(request)

    return abort_requests


def _check_abort(raw: bytes) -> None:
    try:
        body = json.loads(raw)
    except (ValueError, RecursionError) as error:
        raise schema_error(f"JSON decode error: {error}", None) from None
    if not isinstance(body, dict) or "request_ids" not in body:
        raise schema_error("Missing 'request_ids' in request body", None)


async def unserved(request: Request) -> Response:
    """Not served: answers 501."""
    raise not_implemented(f"{request.url.path} is not supported by this server.")


async def _no_handler() -> Response:
    """A render server runs no model that could be invoked."""
    raise bad_request("Cannot find suitable handler for request. Expected one of: []")
