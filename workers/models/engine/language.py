"""A language model as three calls: prepare a prompt, prefill a piece of it, decode one token.

Rows of encoded items are put at the positions they are given for. Knows no sampling and no
requests' lifetimes.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from transformers import DynamicCache

from runtime.storage import Embedding
from schemas.errors import ApiError
from workers.models.engine.loading import LoadedModel, cache_argument
from workers.models.engine.positions import Grid, grid_positions, split_grid
from workers.models.engine.protocol import PlacedItem

CHUNK_TOKENS = 512
"""Prompt tokens per forward pass: bounds memory and the time until a cancellation is seen."""


Rows = Sequence[tuple[Sequence[tuple[int, int]], Tensor]]
"""Per item: its runs in the prompt and the rows [length, width] that go there."""


@dataclass(frozen=True, slots=True)
class Prompt:
    """One prompt as the model's layers take it."""

    embeds: Tensor  # model dtype [1, tokens, hidden]
    positions: Tensor  # int64 [1, tokens], or [3, 1, tokens] with grids
    next_position: int
    """Of the first token to generate, on every axis."""
    is_item: Tensor  # bool [1, tokens]: rows of items, not of the vocabulary
    deepstack: tuple[Tensor, ...]  # per layer [tokens, hidden], zero at text
    chunk_tokens: int
    """Largest piece to prefill at once."""

    def __len__(self) -> int:
        return self.embeds.shape[1]


class LanguageModel:
    """Stateless beside the weights; caches are the caller's."""

    def __init__(self, loaded: LoadedModel) -> None:
        self._loaded = loaded
        self._module = loaded.module
        self._cache_name = cache_argument(loaded.module)
        self.facts = loaded.facts
        self.device = loaded.device

    def new_cache(self) -> DynamicCache:
        return DynamicCache(config=self._module.config.get_text_config(decoder=True))

    def prepare(self, token_ids: Sequence[int], items: Sequence[PlacedItem]) -> Prompt:
        ids = torch.tensor([token_ids], device=self.device)
        is_item = torch.zeros_like(ids, dtype=torch.bool)
        rows: Rows = [(item.runs, self._rows(item.embedding)) for item in items]
        for runs, _ in rows:
            for start, length in runs:
                is_item[0, start : start + length] = True
        # Some families' placeholder ids lie outside the vocabulary.
        embeds = self._embed(ids.masked_fill(is_item, 0))
        hidden = embeds.shape[-1]
        _place(embeds[0], [(runs, r[:, :hidden]) for runs, r in rows])
        positions, next_position = self._positions(len(token_ids), items)
        return Prompt(
            embeds=embeds,
            positions=positions.to(self.device),
            next_position=next_position,
            is_item=is_item,
            deepstack=self._deepstack(embeds, rows),
            chunk_tokens=len(token_ids) if self._sees_whole_images(items) else CHUNK_TOKENS,
        )

    def prefill(
        self, prompt: Prompt, start: int, stop: int, cache: DynamicCache, *, keep: int
    ) -> Tensor:
        """Run positions [start, stop) and return float32 logits [keep, vocabulary] of the last."""
        piece = slice(start, stop)
        logits = self._forward(
            prompt.embeds[:, piece],
            prompt.positions[..., piece],
            cache,
            keep=keep,
            is_item=prompt.is_item[:, piece],
            deepstack=[layer[piece] for layer in prompt.deepstack],
        )
        return logits.squeeze(0)

    def decode(self, tokens: Sequence[int], position: int, cache: DynamicCache) -> Tensor:
        """Run one new token per row of the cache and return float32 logits [rows, vocabulary]."""
        ids = torch.tensor(tokens, device=self.device).unsqueeze(1)
        positions = torch.full_like(ids, position)
        if self.facts.uses_grid_positions:
            positions = positions.expand(3, -1, -1)
        return self._forward(self._embed(ids), positions, cache, keep=1)[:, -1]

    def _embed(self, ids: Tensor) -> Tensor:
        embeds: Tensor = self._module.get_input_embeddings()(ids)
        return embeds

    def _rows(self, embedding: Embedding) -> Tensor:
        dtype = getattr(torch, embedding.dtype)
        rows = torch.frombuffer(bytearray(embedding.data), dtype=dtype).reshape(embedding.shape)
        return rows.to(self.device, self._loaded.dtype)

    def _deepstack(self, embeds: Tensor, rows: Rows) -> tuple[Tensor, ...]:
        hidden, layers = embeds.shape[-1], []
        for index in range(1, 1 + self.facts.deepstack_layers if rows else 1):
            layer = torch.zeros_like(embeds[0])
            columns = slice(index * hidden, (index + 1) * hidden)
            _place(layer, [(runs, r[:, columns]) for runs, r in rows])
            layers.append(layer)
        return tuple(layers)

    def _sees_whole_images(self, items: Sequence[PlacedItem]) -> bool:
        """Tokens of an image attend to each other in both directions, so it may not be cut."""
        return bool(items) and self.facts.model_type == "gemma3"

    def _positions(self, num_tokens: int, items: Sequence[PlacedItem]) -> tuple[Tensor, int]:
        if not self.facts.uses_grid_positions:
            return torch.arange(num_tokens).unsqueeze(0), num_tokens
        grids = [grid for item in items for grid in self._grids(item)]
        ascending = sorted(grids, key=lambda grid: grid.start)
        positions, following = grid_positions(num_tokens, ascending)
        return positions.unsqueeze(1), following

    def _grids(self, item: PlacedItem) -> list[Grid]:
        layout = self.facts.modalities[item.modality]
        try:
            return split_grid(
                item.runs,
                item.metadata[str(layout.grid)],
                self.facts.merge_size,
                time_step=self._time_step(item),
                by_time=layout.splits_time,
            )
        except (KeyError, ValueError, TypeError, OverflowError) as error:
            raise ApiError(f"The {item.modality} does not fit its placeholder: {error}") from error

    def _time_step(self, item: PlacedItem) -> float:
        """Temporal positions between two steps of a grid: by the clock where the family does so."""
        per_second = self.facts.tokens_per_second
        if item.modality != "video" or per_second is None:
            return 1.0
        return per_second * float(item.metadata.get("second_per_grid_ts", 1.0))

    def _forward(
        self,
        embeds: Tensor,
        positions: Tensor,
        cache: DynamicCache,
        *,
        keep: int,
        is_item: Tensor | None = None,
        deepstack: Sequence[Tensor] = (),
    ) -> Tensor:
        with torch.inference_mode():
            arguments: dict[str, Any] = {
                "inputs_embeds": embeds,
                "position_ids": positions,
                self._cache_name: cache,
                "use_cache": True,
            }
            if is_item is not None and bool(is_item.any()):
                if deepstack:
                    return self._forward_deepstack(arguments, is_item, deepstack, keep)
                if self.facts.model_type == "gemma3":
                    arguments["token_type_ids"] = is_item.long()
            logits: Tensor = self._module(**arguments, logits_to_keep=keep).logits
            return logits.float()

    def _forward_deepstack(
        self, arguments: dict[str, Any], is_item: Tensor, deepstack: Sequence[Tensor], keep: int
    ) -> Tensor:
        """The outer model computes these features itself, so its text part is called directly."""
        found = self._module.model.language_model(
            **arguments,
            visual_pos_masks=is_item,
            deepstack_visual_embeds=[layer[is_item[0]] for layer in deepstack],
        )
        logits: Tensor = self._module.lm_head(found.last_hidden_state[:, -keep:])
        return logits.float()


def _place(target: Tensor, rows: Rows) -> None:
    """Copy each item's rows into its runs of `target` [tokens, hidden], in place."""
    for runs, values in rows:
        taken = 0
        for start, length in runs:
            target[start : start + length] = values[taken : taken + length]
            taken += length
