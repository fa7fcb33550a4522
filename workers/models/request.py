"""What holds for all media of one request: options in force, budgets, where results are kept.

Decides; fetches and decodes nothing.
"""

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any

from runtime.settings import ModelSettings, RenderSettings
from schemas.errors import ApiError
from schemas.identity import entry_key
from schemas.refusals import bad_request
from workers.models import hashing
from workers.models.downloads import Downloads, downloads_of
from workers.models.families.adapter import Family, VideoFacts
from workers.models.images import ImageOptions, image_options
from workers.models.limits import Budget, MediaLimits
from workers.models.memo import Memo
from runtime.shares import Claim
from workers.render.media import MediaPart

Kwargs = Mapping[str, Any]

_UNTRUSTED = (
    "Per-request {name} are disabled by default because they can change multimodal {what} resource"
    " usage. Start the server with --trust-request-mm-kwargs only when clients are trusted."
)
_WHAT = {"mm_processor_kwargs": "preprocessing", "media_io_kwargs": "media loading"}

_OPERATORS_SAY = ("device", "hw_decoders", "max_width", "max_height", "pool_size")
_NAMING_BACKENDS = ("backend", "video_backend")
_BACKENDS_OF_DEVICES = ("pynvvideocodec", "deepstream")


@dataclass(frozen=True, slots=True)
class Place:
    """A part among those of its modality."""

    part: MediaPart
    index: int
    total: int

    @property
    def modality(self) -> str:
        return self.part.modality


@dataclass(frozen=True, slots=True)
class MediaRequest:
    """Built once per request, shared by its media."""

    family: Family
    model: str
    algorithm: hashing.Algorithm
    limits: MediaLimits
    processor_kwargs: Kwargs
    """As the request gave them: they enter the hash."""
    processor_options: Mapping[str, Kwargs | ApiError]
    """In force, by modality that the request has; or why they are refused."""
    io_kwargs: Mapping[str, Kwargs]
    """In force, by modality: the server's and the request's together enter the hash."""
    image_options: ImageOptions
    namespace: str
    """Where tensors are kept: model, processing and tenant."""
    tenant: str
    salt: str | None
    decode_budget: Budget
    downloads: Downloads
    seen_videos: Memo[VideoFacts]
    pixels: Claim
    """On the memory for what is decoded."""
    want_tensors: bool
    skip_encoded: bool

    def close(self) -> None:
        """Its files and pixels are needed no more."""
        self.downloads.memory.close()
        self.pixels.close()

    def options_of(self, place: Place) -> tuple[Kwargs, Kwargs]:
        """Processor options of one item, and those that are its alone. Raise ApiError for bad ones:
        they are told after what is wrong with the media."""
        options = self.processor_options[place.modality]
        if isinstance(options, ApiError):
            raise options
        return self.family.for_item(place.modality, options, place.index, place.total)

    def item_id(self, place: Place, item: Any, *, uuid: str | None = None) -> str:
        """The hash of an item, or what its uuid comes to; values that lists in the options hold
        for it are hashed on top."""
        name = hashing.item_id(
            place.modality,
            item,
            model=self.model,
            algorithm=self.algorithm,
            uuid=uuid,
            processor_kwargs=self.processor_kwargs,
            io_kwargs=self.io_kwargs.get(place.modality, {}),
        )
        own = self.options_of(place)[1]
        return hashing.digest({"mm_hash": name, **own}, self.algorithm) if own else name

    def entry_key(self, content: str) -> str:
        """What the embedding of a rendered item is kept under."""
        return entry_key(content, tenant=self.tenant, salt=self.salt)


def check_request_kwargs(
    render: RenderSettings, mm_processor_kwargs: Kwargs | None, media_io_kwargs: Kwargs | None
) -> None:
    """Raise ApiError where a request brings options that the operator does not trust (01 §6.4)."""
    given = {"media_io_kwargs": media_io_kwargs, "mm_processor_kwargs": mm_processor_kwargs}
    for name, value in given.items():
        if value and not render.trust_request_mm_kwargs:
            raise bad_request(_UNTRUSTED.format(name=name, what=_WHAT[name]), name)
        if value is not None and not isinstance(value, Mapping):
            raise bad_request(f"{name} must be an object", name)


def make_request(
    family: Family,
    options: Callable[[str, Kwargs], Kwargs],
    model: ModelSettings,
    render: RenderSettings,
    limits: MediaLimits,
    *,
    modalities: Collection[str],
    mm_processor_kwargs: Kwargs | None,
    media_io_kwargs: Kwargs | None,
    namespace: str,
    tenant: str,
    salt: str | None,
    seen_videos: Memo[VideoFacts],
    files: Claim,
    pixels: Claim,
    want_tensors: bool,
    skip_encoded: bool,
) -> MediaRequest:
    check_request_kwargs(render, mm_processor_kwargs, media_io_kwargs)
    processor_kwargs = dict(mm_processor_kwargs or {})
    io_kwargs = merge_io_kwargs(render.media_io_kwargs, media_io_kwargs or {})
    return MediaRequest(
        family=family,
        model=model.model,
        algorithm=render.mm_hasher_algorithm,
        limits=limits,
        processor_kwargs=processor_kwargs,
        processor_options={m: _attempt(options, m, processor_kwargs) for m in modalities},
        io_kwargs=io_kwargs,
        image_options=image_options(io_kwargs.get("image", {})),
        namespace=namespace,
        tenant=tenant,
        salt=salt,
        decode_budget=Budget(limits.max_request_decode_bytes, "Decoded media"),
        downloads=downloads_of(limits, files),
        seen_videos=seen_videos,
        pixels=pixels,
        want_tensors=want_tensors,
        skip_encoded=skip_encoded,
    )


def _attempt(
    options: Callable[[str, Kwargs], Kwargs], modality: str, request: Kwargs
) -> Kwargs | ApiError:
    try:
        return options(modality, request)
    except ApiError as error:
        return error


def merge_io_kwargs(server: Kwargs, request: Kwargs) -> dict[str, dict[str, Any]]:
    """Per modality, the request's keys win. For videos fps and num_frames contradict each other, so
    the request's choice of one removes the operator's of the other."""
    merged: dict[str, dict[str, Any]] = {}
    for modality in {*server, *request}:
        low, high = server.get(modality) or {}, request.get(modality) or {}
        if not isinstance(low, Mapping) or not isinstance(high, Mapping):
            raise bad_request(f"media_io_kwargs.{modality} must be an object", "media_io_kwargs")
        if modality == "video":
            high = _clients_say(high)
        merged[modality] = {**low, **high}
        if modality == "video" and len({"fps", "num_frames"} & set(high)) == 1:
            rival = "num_frames" if "fps" in high else "fps"
            merged[modality].pop(rival, None)
    return merged


def _clients_say(kwargs: Kwargs) -> Kwargs:
    """Without what only an operator decides: devices, and backends that need one."""
    return {
        name: value
        for name, value in kwargs.items()
        if name not in _OPERATORS_SAY
        and not (name in _NAMING_BACKENDS and value in _BACKENDS_OF_DEVICES)
    }
