"""Puts the in-process engine together from settings; weights are loaded when a stage starts.

Importing it imports torch. Knows no stage and no bus.
"""

import asyncio
from dataclasses import dataclass

from runtime.errors import SettingsError
from runtime.model_dir import ModelDirectory, read_model
from runtime.settings import EngineSettings, ModelSettings
from workers.models.engine.facts import ModelFacts, facts_of
from workers.models.engine.inprocess import InProcessEncoder, InProcessEngine
from workers.models.engine.loading import LoadedModel, complete_config, load_model, use_threads
from workers.models.engine.structured import Grammars
from workers.models.engine.tokens import TextSource
from workers.text.reasoning import PromptReasoning, reasoning_rules
from workers.text.tokenizer import Tokenizer


class Weights:
    """One process's copy of the model, loaded once by whoever needs it first."""

    def __init__(
        self,
        facts: ModelFacts,
        model: ModelSettings,
        settings: EngineSettings,
        *,
        vision: bool,
        language: bool,
    ) -> None:
        self._facts = facts
        self._dtype = model.dtype
        self._threads = settings.engine_threads
        self._vision = vision
        self._language = language
        self._lock = asyncio.Lock()
        self._loaded: LoadedModel | None = None

    async def load(self) -> LoadedModel:
        """Raise SettingsError where the directory cannot be served."""
        async with self._lock:
            if self._loaded is None:
                self._loaded = await asyncio.to_thread(self._load)
        return self._loaded

    def _load(self) -> LoadedModel:
        use_threads(self._threads)
        return load_model(
            self._facts,
            dtype=self._dtype,
            needs_vision=self._vision,
            needs_language=self._language,
        )


@dataclass(frozen=True, slots=True)
class Engines:
    """Not started yet: stages start and close what they are given."""

    facts: ModelFacts
    source: TextSource | None
    """None where the directory holds no tokenizer."""
    encoder: InProcessEncoder | None
    engine: InProcessEngine | None
    reasoning: PromptReasoning | None
    """Where a reasoning parser is set up."""


def create_engines(
    model: ModelSettings, settings: EngineSettings, *, encodes: bool, generates: bool
) -> Engines:
    """`encodes` and `generates`: what this process will do; half a model is loaded for one of them.

    Raise SettingsError where the directory is no model's.
    """
    directory = read_model(model)
    tokenizer = _try_tokenizer(directory)
    facts = facts_of(
        directory,
        model,
        config=complete_config(directory.path),
        eos_token_id=tokenizer.eos_id if tokenizer else None,
    )
    encodes = encodes and bool(facts.modalities)
    if not encodes and not generates:
        raise SettingsError(f"model: {model.model} has nothing to encode; it takes text only")
    source = TextSource(tokenizer, facts.vocab_size) if tokenizer else None
    weights = Weights(facts, model, settings, vision=encodes, language=generates)
    return Engines(
        facts=facts,
        source=source,
        encoder=InProcessEncoder(weights.load) if encodes else None,
        engine=InProcessEngine(
            weights.load, source, max_active=model.max_num_seqs, grammars=_grammars(source, facts)
        )
        if generates
        else None,
        reasoning=_reasoning(model, tokenizer),
    )


def _reasoning(model: ModelSettings, tokenizer: Tokenizer | None) -> PromptReasoning | None:
    if model.reasoning_parser is None or tokenizer is None:
        return None
    return PromptReasoning(reasoning_rules(model.reasoning_parser), tokenizer)


def _grammars(source: TextSource | None, facts: ModelFacts) -> Grammars | None:
    if source is None:
        return None
    ends = {*facts.more_eos_ids} | ({facts.eos_token_id} - {None})
    return Grammars(source, facts.vocab_size, sorted(end for end in ends if end is not None))


def _try_tokenizer(directory: ModelDirectory) -> Tokenizer | None:
    if not (directory.path / "tokenizer.json").exists():
        return None
    return Tokenizer.from_directory(directory.path)
