"""A medium's file becomes a subject: its hash, its placeholder, and how to make its tensors.

Runs in worker threads. Knows no store and no network.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from schemas.errors import ApiError
from schemas.mm_item import Field, encode_item
from schemas.refusals import not_implemented
from workers.models import hashing, images
from workers.models.families.adapter import Plan
from workers.models.fetch import decode_base64, split_data_url
from workers.models.request import MediaRequest
from workers.render.media import MediaPart


@dataclass(frozen=True, slots=True)
class Subject:
    """A medium before it is known whether its tensors have to be made."""

    modality: str
    mm_hash: str
    plan: Plan | None
    """None: only a uuid was given."""
    make: Callable[[], bytes] | None = None
    """Decodes, processes and encodes the full item; slow, for a worker thread."""
    index: int = 0
    """Its number within its modality, for errors about a uuid alone."""
    is_named: bool = False
    """The caller chose the identity (a uuid): what is stored under it wins over what was sent."""


def of_uuid(modality: str, uuid: str, index: int, request: MediaRequest) -> Subject:
    name = request.item_id(modality, None, uuid)
    return Subject(modality, name, None, is_named=True, index=index)


def of_data_url(part: MediaPart, request: MediaRequest) -> Subject:
    media_type, payload = split_data_url(part.source)
    if part.modality == "video" and media_type.lower() == "video/jpeg":
        return of_frames(payload, part.uuid, request)
    return of_file(decode_base64(payload), part, request)


def of_file(data: bytes, part: MediaPart, request: MediaRequest) -> Subject:
    if part.modality == "image":
        return of_image(data, part.uuid, request)
    return of_video(data, part.uuid, request)


def of_image(data: bytes, uuid: str | None, request: MediaRequest) -> Subject:
    """Raise ApiError for what is no picture. Decodes only where the header does not tell enough."""
    options = request.image_options
    header = images.read_header(data, options, request.limits)
    request.decode_budget.charge(header.decoded_bytes)
    picture = None
    if not header.is_complete:
        picture = images.decode(data, options, request.limits)
        header = picture.header
    processing = request.processor_options["image"]
    plan = request.family.plan_image(header.width, header.height, processing)
    file = hashing.ImageFile(data, options.io_config if header.is_converted else None)

    def make() -> bytes:
        image = (picture or images.decode(data, options, request.limits)).image
        return _encoded(request.family.process_image(image, plan, processing), plan)

    name = request.item_id("image", file, uuid)
    return Subject("image", name, plan, make, is_named=uuid is not None)


def of_video(data: bytes, uuid: str | None, request: MediaRequest) -> Subject:
    raise not_implemented("not there yet")


def of_frames(payload: str, uuid: str | None, request: MediaRequest) -> Subject:
    raise not_implemented("not there yet")


def of_embeds(part: MediaPart, request: MediaRequest) -> Subject:
    raise not_implemented("not there yet")


def _encoded(fields: Mapping[str, Field], plan: Plan) -> bytes:
    return encode_item({**fields, **plan.metadata})


def placed(error: ApiError, modality: str, index: int, total: int) -> ApiError:
    """The same refusal, saying which of several media it is about."""
    if total < 2:
        return error
    return ApiError(
        f"{modality} {index + 1} of {total}: {error.message}",
        status=error.status,
        type=error.type,
        param=error.param,
        code=error.code,
    )
