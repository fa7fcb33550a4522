"""A medium's file becomes a subject: its hash, its placeholder, and how to make its tensors.

Runs in worker threads. Knows no store and no network.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from schemas.errors import ApiError
from schemas.mm_item import Field, encode_item
from schemas.refusals import bad_request
from workers.models import hashing, images, items
from workers.models.families import options as opt
from workers.models.families.adapter import Plan, VideoFacts
from workers.models.data_urls import decode_payload, split_data_url
from workers.models.plain_images import is_plain
from workers.models.request import Kwargs, MediaRequest, Place
from workers.models.stored import StoredItem

if TYPE_CHECKING:
    from workers.models.video import Video
    from workers.models.video_file import Source

_COPIES = 2
"""Of a picture's pixels: decoded, and as a processor takes them."""
_SMALL_CHARS = 512 * 1024
_MAX_DATA_HEAD = 128
_JPEG_IN_BASE64 = "/9j/"
_OF_OTHER_BACKENDS = {
    "num_ffmpeg_threads", "seek_mode", "device", "hw_decoders", "max_width", "max_height",
    "pool_size", "timeout_sec",
}  # fmt: skip
"""Options of vLLM's other video decoders."""


@dataclass(frozen=True, slots=True)
class Subject:
    """A medium before it is known whether its tensors have to be made."""

    modality: str
    mm_hash: str
    """Its name on the wire. Empty where nothing can be made of it whatever it is called."""
    content: str = ""
    """The hash of what was sent, also where a uuid names it; empty for a uuid alone."""
    plan: Plan | None = None
    """None: only a uuid was given, or the family takes no such medium."""
    refusal: ApiError | None = None
    """Why the family takes no such medium; matters only where its item has to be made."""
    load: Callable[[], object] | None = None
    """Decodes, and no more. Raises ApiError for what is broken behind a sound header."""
    make: Callable[[], bytes] | None = None
    """Decodes, processes and encodes the full item; slow, for a worker thread."""
    index: int = 0
    """Its number within its modality, for errors about a uuid alone."""
    cost: int = 0
    """Bytes of memory that making takes while it goes on."""
    is_guarded: bool = False
    """Whether `load` and `make` decode in a process of their own."""
    is_named: bool = False
    """The caller chose its name on the wire, a uuid."""
    by_caller: bool = False
    """Its embeddings were made elsewhere."""

    @property
    def is_sent(self) -> bool:
        """Whether there is more of it than a uuid."""
        return self.make is not None or self.refusal is not None

    def planned(self) -> StoredItem | None:
        """The item as far as it is known without its tensors."""
        if self.plan is None:
            return None
        fields = dict(self.plan.metadata)
        metadata = encode_item(fields) if fields else None
        plan = self.plan
        return StoredItem(
            self.modality, self.content, None, metadata, plan.replacement, plan.embeds
        )


def of_uuid(place: Place, request: MediaRequest) -> Subject:
    return _subject(place, request.item_id(place, None, uuid=place.part.uuid))


def named(subject: Subject, place: Place, request: MediaRequest) -> Subject:
    """A medium that was sent, under the name that it has on the wire."""
    if place.part.uuid is None or not subject.mm_hash:
        return replace(subject, content=subject.mm_hash)
    name = request.item_id(place, None, uuid=place.part.uuid)
    return replace(subject, content=subject.mm_hash, mm_hash=name)


def is_small_jpeg(place: Place) -> bool:
    """Whether `of_data_url` takes less time than a thread: its header tells all that is asked."""
    source: str = place.part.source
    if place.modality != "image" or len(source) > _SMALL_CHARS:
        return False
    start = source.find(",", 0, _MAX_DATA_HEAD) + 1
    return start > 0 and source.startswith(_JPEG_IN_BASE64, start)


@dataclass(frozen=True, slots=True)
class Unread:
    """A file that is to be looked into where that does no harm (`workers.models.guarded`)."""

    data: bytes
    is_jpegs: bool = False
    """Pictures in base64, with commas between them."""


def of_data_url(place: Place, request: MediaRequest) -> Subject | Unread:
    media_type, payload, is_base64 = split_data_url(place.part.source)
    if place.modality == "video" and media_type.lower() == "video/jpeg":
        return Unread(payload.encode(), is_jpegs=True)
    return of_file(decode_payload(payload, is_base64), place, request)


def of_file(data: bytes, place: Place, request: MediaRequest) -> Subject | Unread:
    """Raise ApiError for what is no picture."""
    if place.modality != "image" or not is_plain(data):
        return Unread(data)
    options = request.image_options
    header = images.read_header(data, options, request.limits)
    if not header.is_complete:
        return Unread(data)
    request.decode_budget.charge(header.decoded_bytes)

    def decode() -> images.Picture:
        return images.decode(data, options, request.limits)

    return of_image(data, header, place, request, decode)


def of_image(
    data: bytes,
    header: images.Header,
    place: Place,
    request: MediaRequest,
    decode: Callable[[], images.Picture],
    **facts: Any,
) -> Subject:
    """A picture whose pixels are paid for; `facts` are the subject's own."""
    options = request.image_options
    file = hashing.ImageFile(data, options.io_config if header.is_converted else None)

    def load() -> images.Picture:
        decoded = decode()
        if decoded.header != header:  # what is broken may load otherwise than it announces
            raise bad_request("Failed to load image: its pixels do not fit its header")
        return decoded

    name = ""
    try:
        processing, _ = request.options_of(place)
        name = request.item_id(place, file)
        plan = request.family.plan_image(header.width, header.height, processing)
    except ApiError as error:
        return _subject(place, name, load=load, refusal=placed(error, place), **facts)

    def make() -> bytes:
        image = images.as_rgb(load())
        return _encoded(request.family.process_image(image, plan, processing), plan)

    known = {"cost": header.decoded_bytes * _COPIES, **facts}
    return _subject(place, name, plan=plan, load=load, make=make, **known)


# --- videos


def sampler(request: MediaRequest) -> "Callable[[Source], list[int]]":
    """The family's own way, or vLLM's plain one where `video_backend` asks for it."""
    from workers.models import video as decoder

    kwargs = request.io_kwargs.get("video", {})
    if kwargs.get("backend", decoder.BACKEND) != decoder.BACKEND:
        raise bad_request("videos are decoded by the opencv-compatible backend only")
    foreign = sorted(_OF_OTHER_BACKENDS & kwargs.keys())
    if foreign:
        raise bad_request(f"{', '.join(foreign)} is not supported by the 'opencv' backend")
    loader = kwargs.get("video_backend") or request.family.video_loader
    if loader == request.family.video_loader:
        return lambda source: request.family.sample_frames(source.total_frames, source.fps, kwargs)
    if loader != "opencv":
        raise bad_request(f"video_backend {loader!r} is not supported for this model")
    count = opt.real(kwargs.get("num_frames", 32), "num_frames")
    fps = opt.real(kwargs.get("fps", -1), "fps")
    return lambda source: decoder.uniform(source, int(count), fps)


def of_video(
    file: hashing.VideoFile,
    facts: VideoFacts,
    place: Place,
    request: MediaRequest,
    load: "Callable[[], Video]",
    **known: Any,
) -> Subject:
    """A video whose frames are paid for; `known` are the subject's own facts."""
    name = ""
    try:
        processing, _ = request.options_of(place)
        name = request.item_id(place, (file, facts.metadata))
        facts, kept = _selected(facts, processing, request)
        plan = request.family.plan_video(facts, processing)
    except ApiError as error:
        return _subject(place, name, load=load, refusal=placed(error, place), **known)

    def make() -> bytes:
        video = load()
        if kept is not None:
            video = replace(video, frames=video.frames[kept])
        return _encoded(request.family.process_video(video, plan, processing), plan)

    return _subject(place, name, plan=plan, load=load, make=make, **known)


def _selected(
    facts: VideoFacts, processing: Kwargs, request: MediaRequest
) -> tuple[VideoFacts, list[int] | None]:
    """What the processor takes of the loaded frames, and their numbers; None: all."""
    kept = request.family.select_frames(facts.metadata, processing)
    if kept is None:
        return facts, None
    if max(kept) >= facts.num_frames:
        raise bad_request("do_sample_frames needs all frames of the video")
    metadata = {**facts.metadata, "frames_indices": kept}
    return replace(facts, num_frames=len(kept), metadata=metadata), kept


def video_facts(video: "Video") -> VideoFacts:
    count, height, width, _ = video.frames.shape
    return VideoFacts(
        width=width,
        height=height,
        num_frames=count,
        metadata=video.metadata,
        times=video.times,
    )


# --- embeddings made elsewhere


def of_embeds(place: Place, request: MediaRequest) -> Subject:
    from workers.models import embeds

    part = place.part
    facts = request.family.modalities[part.modality]
    fields = embeds.load_fields(part, facts, request.limits.max_embeds_bytes)
    plan = request.family.plan_embeds(part.modality, fields)
    main = f"{part.modality}_embeds"
    num_embeds = plan.num_embeds
    if len(fields[main]) != num_embeds:
        raise bad_request(
            f"{part.param} has {len(fields[main])} rows for {num_embeds} positions", part.param
        )

    def make() -> bytes:
        return _encoded({main: request.family.embeds_field(fields[main])}, plan)

    name = request.item_id(place, fields)
    return _subject(place, name, plan=plan, make=make, by_caller=True)


def _subject(place: Place, mm_hash: str, **known: Any) -> Subject:
    is_named = place.part.uuid is not None
    return Subject(place.modality, mm_hash, index=place.index, is_named=is_named, **known)


def _encoded(fields: Mapping[str, Field], plan: Plan) -> bytes:
    return items.encode({**fields, **plan.metadata})


def placed(error: ApiError, place: Place) -> ApiError:
    """The same refusal, saying which of several media it is about."""
    if place.total < 2:
        return error
    return ApiError(
        f"{place.modality} {place.index + 1} of {place.total}: {error.message}",
        status=error.status,
        type=error.type,
        param=error.param,
        code=error.code,
    )
