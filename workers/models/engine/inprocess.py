"""The engine and the encoder that run in this process, each on a thread of its own.

Knows no envelope, no cache and no HTTP.
"""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import aclosing

import torch
from torch import Tensor

from runtime.storage import Embedding
from schemas.envelope import now_ms
from schemas.errors import Transient
from workers.models.engine.constraints import Constraints
from workers.models.engine.fields import to_tensors
from workers.models.engine.finite import require_finite
from workers.models.engine.language import LanguageModel
from workers.models.engine.loading import LoadedModel
from workers.models.engine.protocol import EncoderInput, GenerationRequest, Progress
from workers.models.engine.running import RunningRequest
from workers.models.engine.sampling import Sampling
from workers.models.engine.structured import Constraint, Grammars
from workers.models.engine.thread import DeviceThread
from workers.models.engine.tokens import TextSource
from workers.models.engine.towers import encode_item

WARM_UP_S = 120.0

Load = Callable[[], Awaitable[LoadedModel]]


class InProcessEngine:
    """`Engine` over this process's weights. Requests advance in turn, one step each.

    Stages that share it may each start and close it.
    """

    def __init__(
        self,
        load: Load,
        source: TextSource | None,
        *,
        max_active: int,
        grammars: Grammars | None = None,
    ) -> None:
        """`source` and `grammars`: where the model has a tokenizer."""
        self._load = load
        self._source = source
        self._grammars = grammars
        self._model: LanguageModel | None = None
        self._thread = DeviceThread("engine", max_active=max_active, translate=translate)

    async def start(self) -> None:
        if self._model is None:
            self._model = LanguageModel(await self._load())
            self._thread.start()
            async for _ in self.generate(_warm_up()):
                pass

    async def generate(self, request: GenerationRequest) -> AsyncGenerator[Progress, None]:
        model = self._model
        assert model is not None, "started by its stage"
        constraints = await self._constraints(request)
        steps = self._thread.stream(
            lambda: RunningRequest(request, model, self._source, constraints),
            deadline_ms=request.deadline_ms,
        )
        async with aclosing(steps):
            async for progress in steps:
                yield progress

    async def _constraints(self, request: GenerationRequest) -> Constraints:
        """ApiError for words and grammars that are more than this engine takes."""
        source, wire, words = self._source, request.sampling.structured, request.sampling.bad_words
        bad_words = await asyncio.to_thread(source.bad_words, words) if source and words else []
        if wire is None:
            return Constraints(bad_words)
        assert self._grammars is not None, "the stage refuses it where there is no tokenizer"
        grammar = await self._grammars.compile(wire)
        return Constraints(bad_words, Constraint(grammar, request.constrained_after))

    async def close(self) -> None:
        await self._thread.close()


def _warm_up() -> GenerationRequest:
    """One token, so that the first caller does not wait for kernels to be chosen."""
    return GenerationRequest(
        request_id="warm-up",
        token_ids=(0,),
        items=(),
        sampling=Sampling.of_wire({"temperature": 0}),
        max_tokens=1,
        seeds=(0,),
        deadline_ms=now_ms() + WARM_UP_S * 1000,
    )


class InProcessEncoder:
    """`Encoder` over this process's weights; shared as `InProcessEngine` is."""

    def __init__(self, load: Load) -> None:
        self._load = load
        self._loaded: LoadedModel | None = None
        self._thread = DeviceThread("encoder", max_active=1, translate=translate)

    async def start(self) -> None:
        if self._loaded is None:
            self._loaded = await self._load()
            self._thread.start()

    async def encode(self, items: Sequence[EncoderInput], *, deadline_ms: float) -> list[Embedding]:
        loaded = self._loaded
        assert loaded is not None, "started by its stage"
        return await self._thread.run(lambda: _Encoding(loaded, items), deadline_ms=deadline_ms)

    async def close(self) -> None:
        await self._thread.close()


class _Encoding:
    """`Steps` of one call: an item each. Items run alone, so that a result never depends on its
    neighbours."""

    def __init__(self, loaded: LoadedModel, items: Sequence[EncoderInput]) -> None:
        self._loaded = loaded
        self._items = list(items)
        self._done: list[Embedding] = []

    def step(self) -> bool:
        if len(self._done) < len(self._items):
            item = self._items[len(self._done)]
            rows = encode_item(self._loaded, item.modality, to_tensors(item.fields))
            require_finite(rows, f"The embedding of the {item.modality}", by_caller=item.by_caller)
            self._done.append(to_embedding(rows))
        return len(self._done) == len(self._items)

    def result(self) -> list[Embedding] | None:
        return self._done if len(self._done) == len(self._items) else None


def to_embedding(rows: Tensor) -> Embedding:
    rows = rows.detach().cpu().contiguous()
    return Embedding(
        dtype=str(rows.dtype).removeprefix("torch."),
        shape=tuple(rows.shape),
        data=rows.view(torch.uint8).numpy().tobytes(),
    )


def translate(error: BaseException) -> BaseException:
    """Lack of memory may be over in a moment; anything else is what it is."""
    is_full = isinstance(error, torch.OutOfMemoryError | MemoryError)
    # On a CPU, torch has no class of its own for it.
    is_full = is_full or (isinstance(error, RuntimeError) and "allocate memory" in str(error))
    return Transient("the device is out of memory") if is_full else error
