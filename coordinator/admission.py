"""Which way an admitted request goes. Pure: a parsed body in, a route out."""

from schemas.chat import ChatCompletionRequest
from schemas.generate import GenerateRequest
from schemas.parts import has_media
from schemas.routes import ENCODE_ONLY, MEDIA, PREFILL_ONLY, RAW_MEDIA, TEXT, Kind, Stop


def plan(kind: Kind, body: object, pin: str | None) -> list[Stop]:
    """The route of a request. `pin` is the one stage an ingress lets generate requests run."""
    if isinstance(body, GenerateRequest):
        return _plan_generate(body, pin)
    if kind is Kind.CHAT and isinstance(body, ChatCompletionRequest) and has_media(body.messages):
        return list(MEDIA[kind])
    return list(TEXT[kind])


def _plan_generate(body: GenerateRequest, pin: str | None) -> list[Stop]:
    if body.raw_media():
        return list(RAW_MEDIA[pin])
    if pin == "encode":
        return list(ENCODE_ONLY)
    if pin == "prefill" or not has_tensors(body):
        return list(PREFILL_ONLY)
    return list(MEDIA[Kind.GENERATE])


def has_tensors(body: GenerateRequest) -> bool:
    """Whether any item brings its kwargs_data."""
    features = body.features
    if features is None or not features.kwargs_data:
        return False
    return any(item for items in features.kwargs_data.values() for item in items)
