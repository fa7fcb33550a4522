"""A request's media, from the parts of its messages to items that can be sent on.

Fetch, hash, and then as little as possible: what the encoder cache or the store knows is not
decoded, and concurrent requests with the same picture share one pass. Knows no chat, no template.
"""

import asyncio
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from runtime.settings import ModelSettings, RenderSettings
from runtime.storage import BlobStore, EncoderCache
from runtime.storage.digest import digest_of
from schemas.envelope import BlobRef
from schemas.errors import ApiError
from schemas.refusals import bad_request
from workers.models import stored, subjects
from workers.models.families import build_family
from workers.models.families.adapter import Family, VideoFacts, Vocabulary
from workers.models.fetch import Fetcher
from workers.models.guarded import GuardedMedia
from workers.models.limits import FREE_BYTES, MediaLimits
from workers.models.memo import Memo
from workers.models.request import Kwargs, MediaRequest, Place, check_request_kwargs, make_request
from runtime.shares import SharedBytes
from workers.models.stored import StoredItem
from workers.models.subjects import Subject
from workers.models.threads import start_threads, warm
from workers.models.waiting import SingleFlight, in_order, until_failure
from workers.render.media import MediaItem, MediaPart, Span

T = TypeVar("T")

_DEFAULT_LIMIT = 999
_UNBOUNDED = 2**31 - 1
_MODALITIES = ("image", "video", "audio")


class MediaPipeline:
    """See `Media` in workers.render.media. One per process; whoever opens it closes it.

    An item's entry in the store is shared by everything that has the same content in the same
    namespace: model string, processor settings and tenant.
    """

    def __init__(
        self,
        model: ModelSettings,
        render: RenderSettings,
        blobs: BlobStore,
        encoder_cache: EncoderCache | None,
        *,
        vocabulary: Vocabulary,
        model_dir: Path | None = None,
        limits: MediaLimits | None = None,
    ) -> None:
        """Raise SettingsError where the model directory lacks what its family needs.

        `model_dir` is where `model.model` points to, if that is not a path from here.
        `encoder_cache` is the one that the encode stage publishes to.
        """
        self._model = model
        self._render = render
        self._blobs = blobs
        self._encoder_cache = encoder_cache
        self._bounds = limits or MediaLimits()
        self._family = _require_family(model, render, model_dir, vocabulary)
        self._fetcher = Fetcher(render, self._bounds)
        self._guarded = GuardedMedia(self._bounds)
        self._files = SharedBytes(self._bounds.max_fetched_bytes)
        self._pixels = SharedBytes(self._bounds.max_decoded_bytes)
        self._flights: SingleFlight[StoredItem] = SingleFlight()
        self._seen_videos: Memo[VideoFacts] = Memo(1024)
        self._namespaces: Memo[str] = Memo(1024)
        self._plain_options: dict[str, Kwargs] = {}
        self._threads = start_threads(render.render_threads)
        self.limits: Mapping[str, int] = _limits(self._family, model.limit_mm_per_prompt)
        self.max_limits: Mapping[str, int] = {
            m: _UNBOUNDED if limit or m in self._family.modalities else 0
            for m, limit in self.limits.items()
        }
        self.literals: Sequence[str] = self._family.literals

    async def start(self) -> None:
        """Load the libraries before the first request pays for it."""
        await asyncio.gather(*(self._in_thread(warm) for _ in range(2)))

    async def close(self) -> None:
        self._threads.shutdown(wait=False, cancel_futures=True)
        self._guarded.close()
        await self._fetcher.close()

    # --- the prompt

    def placeholder(self, modality: str, index: int) -> str:
        return self._family.placeholder(modality, index)

    def locate(self, prompt_ids: Sequence[int], parts: Sequence[MediaPart]) -> list[Span]:
        wanted = {part.modality for part in parts}
        left = {m: _positions(prompt_ids, self._family.target(m)) for m in wanted}
        spans = [(_take(left, part.modality), 1) for part in parts]
        for modality, positions in left.items():
            if positions:
                raise bad_request(
                    f"the prompt holds {len(positions)} more {modality} placeholder(s)"
                    f" than there are {modality}s",
                    "messages",
                )
        return spans

    def settle(self, ids: list[int], ranges: list[Span]) -> tuple[list[int], list[Span]]:
        return self._family.settle(ids, ranges)

    # --- the items

    async def load(
        self,
        parts: Sequence[MediaPart],
        *,
        mm_processor_kwargs: Kwargs | None,
        media_io_kwargs: Kwargs | None,
        tenant: str,
        want_tensors: bool,
        cache_salt: str | None = None,
        skip_encoded: bool = False,
    ) -> list[MediaItem]:
        self._check(parts, mm_processor_kwargs, media_io_kwargs)
        request = make_request(
            self._family,
            self._options,
            self._model,
            self._render,
            self._bounds,
            modalities={part.modality for part in parts},
            mm_processor_kwargs=mm_processor_kwargs,
            media_io_kwargs=media_io_kwargs,
            namespace=self._namespace(tenant),
            tenant=tenant,
            salt=cache_salt,
            seen_videos=self._seen_videos,
            files=self._files.claim(),
            pixels=self._pixels.claim(),
            want_tensors=want_tensors,
            skip_encoded=skip_encoded and self._encoder_cache is not None,
        )
        try:
            return await self._items(parts, request)
        except ApiError as error:
            # An answer, not a bug: where it was raised, frames would keep files and pixels.
            error.__cause__ = error.__context__ = None
            raise error.with_traceback(None) from None
        finally:
            request.close()

    async def _items(self, parts: Sequence[MediaPart], request: MediaRequest) -> list[MediaItem]:
        found = await self._subjects(parts, request)
        # Of equal names the first that was sent decides, in prompt order: a uuid may come with two
        # pictures. All that were sent must be fit.
        unfit = [subject for subject in found if subject.refusal is not None]
        sent = [subject for subject in found if subject.is_sent]
        decisive = [*reversed(found), *reversed(sent), *reversed(unfit)]
        distinct = {(s.modality, s.mm_hash): s for s in decisive}
        alone = {(s.modality, s.mm_hash): s for s in reversed(found) if not s.is_sent}
        made = await in_order(
            [self._item(s, alone.get(name), request) for name, s in distinct.items()]
        )
        items = dict(zip(distinct, made, strict=True))
        return [items[subject.modality, subject.mm_hash] for subject in found]

    def _check(
        self, parts: Sequence[MediaPart], processor: Kwargs | None, io: Kwargs | None
    ) -> None:
        """Everything that can be refused before a byte is fetched."""
        check_request_kwargs(self._render, processor, io)
        for modality, limit in self.limits.items():
            if sum(part.modality == modality for part in parts) > limit:
                raise bad_request(
                    f"At most {limit} {modality}(s) may be provided in one prompt.", modality
                )
        for part in parts:
            if part.form == "embeds" and not self._model.enable_mm_embeds:
                raise bad_request(
                    f"You must set `--enable-mm-embeds` to input `{part.param}`", part.param
                )

    async def _subjects(self, parts: Sequence[MediaPart], request: MediaRequest) -> list[Subject]:
        """In the order of the parts. The first that cannot be read is told, modality by modality,
        then what was not sent; what the family refuses is told last, by whoever makes the items."""
        places = _places(parts)
        modalities = list(dict.fromkeys(place.modality for place in places))
        sent = [place for place in places if _is_sent(place)]
        sent.sort(key=lambda place: modalities.index(place.modality))
        read, fault = await until_failure([self._subject(place, request) for place in sent])
        fault = fault or next(filter(None, map(_nameless, places)), None)
        if fault is not None:
            await in_order([self._loaded(s, request) for s in read])
            raise fault
        found = {(subject.modality, subject.index): subject for subject in read}
        return [
            found.get((place.modality, place.index)) or subjects.of_uuid(place, request)
            for place in places
        ]

    async def _subject(self, place: Place, request: MediaRequest) -> Subject:
        try:
            subject = await self._identified(place, request)
            return subjects.named(subject, place, request)
        except ApiError as error:
            raise subjects.placed(error, place) from error

    async def _identified(self, place: Place, request: MediaRequest) -> Subject:
        part = place.part
        if part.form == "embeds":
            return await self._in_thread(subjects.of_embeds, place, request)
        if not isinstance(part.source, str):
            raise bad_request(f"{part.param} must hold a URL", part.param)
        read = await self._read(place, request)
        if isinstance(read, subjects.Unread):
            return await self._guarded.subject(read, place, request)
        return read

    async def _read(self, place: Place, request: MediaRequest) -> Subject | subjects.Unread:
        source: str = place.part.source
        if source[:5].lower() != "data:":
            data = await self._fetcher.fetch(place.part, request.downloads)
            return await self._in_thread(subjects.of_file, data, place, request)
        if subjects.is_small_jpeg(place):
            return subjects.of_data_url(place, request)
        await request.downloads.memory.keep(len(source) - FREE_BYTES)
        return await self._in_thread(subjects.of_data_url, place, request)

    async def _item(
        self, subject: Subject, alone: Subject | None, request: MediaRequest
    ) -> MediaItem:
        """The least work that gives the item: known embedding, stored tensors, plan, all of it.

        `alone` is a mention of the same uuid without data, which has to be known from before.
        """
        known = await self._named(alone, request) if alone is not None else None
        if subject.refusal is not None:
            raise subject.refusal
        if subject.is_sent:
            known = subject.planned()
        assert known is not None, "sent and planned, or named"
        item = await self._settled(subject, known, request)
        if subject.is_sent and subject.is_named:
            await stored.remember_uuid(self._blobs, self._uuid_name(subject, request), known)
        return item

    async def _settled(
        self, subject: Subject, known: StoredItem, request: MediaRequest
    ) -> MediaItem:
        key = request.entry_key(known.content)
        if request.skip_encoded and await self._is_encoded(subject.mm_hash, key):
            return _item_of(subject, known, key, encoded=True)
        if request.want_tensors:
            known = await self._with_tensors(subject, known, request)
        item = _item_of(subject, known, key, with_tensors=request.want_tensors)
        if isinstance(item.kwargs, BlobRef) and not self._blobs.is_shared:
            item = replace(item, held=await self._blobs.get(item.kwargs))
        return item

    async def _named(self, subject: Subject, request: MediaRequest) -> StoredItem:
        found = await stored.find_uuid(self._blobs, self._uuid_name(subject, request))
        if found is None:
            raise _cache_miss(subject)
        return found

    def _uuid_name(self, subject: Subject, request: MediaRequest) -> str:
        return stored.uuid_name(
            request.namespace, subject.modality, subject.mm_hash, request.salt
        )

    async def _is_encoded(self, mm_hash: str, key: str) -> bool:
        cache = self._encoder_cache
        return cache is not None and await cache.contains(mm_hash, key=key)

    async def _with_tensors(
        self, subject: Subject, known: StoredItem, request: MediaRequest
    ) -> StoredItem:
        found = await stored.find(
            self._blobs, request.namespace, known.content, modality=subject.modality
        )
        if found is not None:
            return found
        if not subject.is_sent:
            raise _cache_miss(subject)
        return await self._flights.run(
            (request.namespace, subject.modality, known.content),
            lambda: self._make(subject, known, request),
        )

    async def _make(
        self, subject: Subject, known: StoredItem, request: MediaRequest
    ) -> StoredItem:
        item = known.with_tensors(await self._tensors(subject, request))
        await stored.remember(self._blobs, request.namespace, item)
        return item

    async def _tensors(self, subject: Subject, request: MediaRequest) -> BlobRef:
        assert subject.make is not None
        if self._blobs.is_shared:
            call = partial(_with_digest, subject.make)
            data, digest = await self._decoding(subject, request, call)
        else:  # nobody verifies it, and the item's hash says as much as that of its bytes
            digest = stored.address(request.namespace, subject.content)
            data = await self._decoding(subject, request, subject.make)
        return await self._blobs.put(data, digest=digest)

    async def _loaded(self, subject: Subject, request: MediaRequest) -> None:
        if subject.load is not None:
            await self._decoding(subject, request, subject.load)

    async def _decoding(self, subject: Subject, request: MediaRequest, call: Callable[[], T]) -> T:
        """Within the memory there is for it, in a process of its own where it has to be."""
        async with request.pixels.holding(subject.cost):
            if subject.is_guarded:
                return await self._guarded.run(subject, call)
            return await self._in_thread(call)

    def _options(self, modality: str, request: Kwargs) -> Kwargs:
        """The processor's options in force; the same for all requests that bring none."""
        if request:
            return self._family.options(modality, request)
        if modality not in self._plain_options:
            self._plain_options[modality] = self._family.options(modality, {})
        return self._plain_options[modality]

    def _namespace(self, tenant: str) -> str:
        known = self._namespaces.get(tenant)
        if known is None:
            known = self._new_namespace(tenant)
            self._namespaces.put(tenant, known)
        return known

    def _new_namespace(self, tenant: str) -> str:
        processing = {
            "mm_processor_kwargs": self._render.mm_processor_kwargs,
            "raw_pixels": self._render.mm_device_do_normalize,
            "family": self._family.fingerprint,
        }
        return stored.namespace(model=self._model.model, processing=processing, tenant=tenant)

    async def _in_thread(self, call: Callable[..., T], *args: Any) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._threads, call, *args)


def _with_digest(make: Callable[[], bytes]) -> tuple[bytes, str]:
    """In the thread that made the bytes, whose core has just seen them."""
    data = make()
    return data, digest_of(data)


def _require_family(
    model: ModelSettings, render: RenderSettings, model_dir: Path | None, vocabulary: Vocabulary
) -> Family:
    family = build_family(
        model_dir or Path(model.model),
        vocabulary,
        dtype=model.dtype,
        server_options=render.mm_processor_kwargs,
        raw_pixels=render.mm_device_do_normalize,
    )
    if family is None:
        raise ValueError(f"{model.model} is a text-only model: it has no media")
    return family


def _limits(family: Family, asked: Mapping[str, int]) -> dict[str, int]:
    supported = family.modalities
    return {m: asked.get(m, _DEFAULT_LIMIT) if m in supported else 0 for m in _MODALITIES}


def _positions(ids: Sequence[int], token: int) -> list[int]:
    return [position for position, found in enumerate(ids) if found == token]


def _take(left: Mapping[str, list[int]], modality: str) -> int:
    if left[modality]:
        return left[modality].pop(0)
    raise bad_request(
        f"Failed to apply prompt replacement: the chat template does not place every {modality}"
    )


def _places(parts: Sequence[MediaPart]) -> list[Place]:
    totals, seen = Counter(part.modality for part in parts), Counter[str]()
    places = []
    for part in parts:
        places.append(Place(part, seen[part.modality], totals[part.modality]))
        seen[part.modality] += 1
    return places


def _is_sent(place: Place) -> bool:
    return place.part.source not in (None, "")


def _nameless(place: Place) -> ApiError | None:
    """The refusal of a medium of which nothing at all was sent."""
    if _is_sent(place) or place.part.uuid is not None:
        return None
    where = f"[{place.modality!r}][{place.index}]"
    return bad_request(
        f"multi_modal_data{where} is empty but multi_modal_uuids{where} is missing.",
        "multi_modal_uuids",
    )


def _cache_miss(subject: Subject) -> ApiError:
    return bad_request(
        f"Cache miss for {subject.modality} at index {subject.index} but data is not provided."
    )


def _item_of(
    subject: Subject,
    known: StoredItem,
    key: str,
    *,
    with_tensors: bool = False,
    encoded: bool = False,
) -> MediaItem:
    return MediaItem(
        modality=subject.modality,
        mm_hash=subject.mm_hash,
        entry="" if key == subject.mm_hash else key,
        by_caller=subject.by_caller,
        replacement=known.replacement,
        embeds=known.embeds,
        kwargs=known.kwargs if with_tensors else None,
        metadata=known.metadata,
        encoded=encoded,
    )
