"""How much media a request may bring, as plain numbers. Knows no decoder and no network."""

import threading
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Self

from runtime.errors import SettingsError
from schemas.errors import ApiError
from schemas.refusals import bad_request

_MIB = 1024 * 1024
FREE_BYTES = 256 * 1024
"""Of each media file, for which no share of the memory is asked: small ones never wait."""


@dataclass(frozen=True, slots=True)
class MediaLimits:
    """Bounds with vLLM's defaults and its documented variables; 0 turns a size bound off."""

    max_image_pixels: int = 178_956_970
    """VLLM_MAX_IMAGE_PIXELS: of one image or video frame, checked in the header."""
    max_request_decode_bytes: int = 715_827_880
    """VLLM_MAX_MEDIA_REQUEST_DECODE_BYTES: of all media of a request once decoded."""
    max_download_bytes: int = 256 * _MIB
    """VLLM_MAX_MEDIA_DOWNLOAD_SIZE_MB."""
    max_request_download_bytes: int = 256 * _MIB
    """VLLM_MAX_MEDIA_REQUEST_DOWNLOAD_SIZE_MB."""
    max_embeds_bytes: int = 2**31
    """VLLM_MAX_EMBED_DECODE_BYTES: of one tensor of an embeds part."""
    image_fetch_timeout_s: float = 5.0
    """VLLM_IMAGE_FETCH_TIMEOUT: of the first attempt; each retry has four times as long."""
    video_fetch_timeout_s: float = 30.0
    """VLLM_VIDEO_FETCH_TIMEOUT."""
    request_fetch_timeout_s: float = 120.0
    """Of all downloads of one request together, retries included."""
    max_fetch_attempts: int = 3
    """VLLM_MEDIA_FETCH_MAX_RETRIES."""
    max_image_decode_s: float = 15.0
    """Of one picture: processor time of the process that decodes it."""
    max_video_decode_s: float = 120.0
    """Of one video, from its first packet to the last frame that is looked at: processor time."""
    max_decoder_bytes: int = 1280 * _MIB
    """Of memory that one picture may take while it is decoded."""
    max_decoded_bytes: int = 512 * _MIB
    """Of pixels, of all requests of the process; the oldest may take its own limit on top."""
    max_fetched_bytes: int = 256 * _MIB
    """Of media files, of all requests of the process; the oldest may take its own limit on top."""
    max_fetches: int = 1024
    """Downloads of the process at once."""
    max_fetches_per_host: int = 64
    max_fetches_per_request: int = 16
    min_fetch_rate: int = 1024
    """Bytes a second, on average, below which a download is given up."""
    retry_delay_s: float = 1.0
    """Before the first retry; four times as long before each further one."""
    allow_redirects: bool = True
    """VLLM_MEDIA_URL_ALLOW_REDIRECTS."""

    @classmethod
    def from_environ(cls, environ: Mapping[str, str]) -> Self:
        """Raise SettingsError for a variable that is not a number."""
        numbers = {
            field: _number(name, environ[name], kind) * unit
            for name, (field, kind, unit) in _VARIABLES.items()
            if environ.get(name)
        }
        redirects = environ.get("VLLM_MEDIA_URL_ALLOW_REDIRECTS", "1") not in ("", "0")
        return cls(**numbers, allow_redirects=redirects)  # type: ignore[arg-type]


_VARIABLES: dict[str, tuple[str, type[int] | type[float], int]] = {
    "VLLM_MAX_IMAGE_PIXELS": ("max_image_pixels", int, 1),
    "VLLM_MAX_MEDIA_REQUEST_DECODE_BYTES": ("max_request_decode_bytes", int, 1),
    "VLLM_MAX_MEDIA_DOWNLOAD_SIZE_MB": ("max_download_bytes", int, _MIB),
    "VLLM_MAX_MEDIA_REQUEST_DOWNLOAD_SIZE_MB": ("max_request_download_bytes", int, _MIB),
    "VLLM_MAX_EMBED_DECODE_BYTES": ("max_embeds_bytes", int, 1),
    "VLLM_IMAGE_FETCH_TIMEOUT": ("image_fetch_timeout_s", float, 1),
    "VLLM_VIDEO_FETCH_TIMEOUT": ("video_fetch_timeout_s", float, 1),
    "VLLM_MEDIA_FETCH_MAX_RETRIES": ("max_fetch_attempts", int, 1),
}


def _number(name: str, text: str, kind: type[int] | type[float]) -> int | float:
    try:
        return kind(text)
    except ValueError:
        raise SettingsError(f"{name}={text!r} must be a number") from None


class Budget:
    """Bytes that all media of one request may take together; shared by its worker threads."""

    def __init__(self, limit: int, name: str, *, status: int = 400) -> None:
        self._limit = limit
        self._name = name
        self._status = status
        self._used = 0
        self._lock = threading.Lock()

    @classmethod
    def unlimited(cls) -> Self:
        return cls(0, "")

    def charge(self, size: int) -> None:
        """Raise ApiError where the limit would be passed; nothing is taken then."""
        if self._limit <= 0:
            return
        with self._lock:
            if self._used + size > self._limit:
                raise self._refusal(self._used + size)
            self._used += size

    def _refusal(self, wanted: int) -> ApiError:
        message = f"{self._name} exceeds {self._limit} bytes per request: at least {wanted}"
        if self._status == 400:
            return bad_request(message)
        return ApiError(message, status=self._status, type="UnprocessableEntityError")
