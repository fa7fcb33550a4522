"""A lean forward pass over the parameters of transformers' Qwen3-VL, for training on a small CPU.

It computes what `Qwen3VLForConditionalGeneration` computes, but takes all pictures of one grid as
one batch and lets packed rows share their beginnings. `tests/test_demo_model.py` compares the two.
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers.vision_utils import (
    get_vision_interpolation_indices_and_weights,
    get_vision_position_ids,
)

from .packing import IGNORED, Batch
from .pixels import PATCH, normalised


def step_loss(model: nn.Module, batches: list[Batch]) -> Tensor:
    """Weighted mean of the cross entropy over the answer tokens of all batches of a step."""
    sums, weights = zip(*(_loss_sum(model, batch) for batch in batches), strict=True)
    return torch.stack(sums).sum() / sum(weights)


def _loss_sum(model: nn.Module, batch: Batch) -> tuple[Tensor, float]:
    """Weighted sum of the cross entropy over the answer tokens, and the sum of the weights."""
    features = _picture_features(model.model.visual, batch.pictures)
    hidden = _text_hidden(model.model.language_model, batch, features)
    # The token at t is predicted from t - 1; a branch's answer never starts at its first token.
    labels = torch.from_numpy(batch.labels).flatten()
    counted = (labels != IGNORED).nonzero().squeeze(1)
    weights = torch.from_numpy(batch.weights).flatten()[counted]
    logits = F.linear(hidden.flatten(0, 1)[counted - 1], model.lm_head.weight)
    losses = F.cross_entropy(logits, labels[counted], reduction="none")
    return losses @ weights, weights.sum().item()


def _picture_features(visual: nn.Module, pictures: dict) -> list[Tensor]:
    """Features [image tokens, hidden] of the merger and then of each deep-stack layer."""
    parts = [_vision(visual, torch.from_numpy(patches), grid) for grid, patches in pictures.items()]
    return [torch.cat(column) for column in zip(*parts, strict=True)]


def _vision(visual: nn.Module, patches: Tensor, grid: tuple[int, int]) -> list[Tensor]:
    """The vision tower; uint8 patches [pictures, patches, 768] of one `grid` (rows, columns)."""
    cos, sin, place = _grid_positions(visual, grid)
    projection = visual.patch_embed.proj
    # Both frames hold the same pixels, so the two halves of the kernel act as their sum.
    kernel = projection.weight.sum(2).reshape(-1, 3 * PATCH * PATCH)
    x = F.linear(normalised(patches), kernel, projection.bias) + place
    deep = []
    for index, block in enumerate(visual.blocks):
        x = x + _vision_attention(block.attn, block.norm1(x), cos, sin)
        x = x + block.mlp(block.norm2(x))
        if index in visual.deepstack_visual_indexes:
            merger = visual.deepstack_merger_list[visual.deepstack_visual_indexes.index(index)]
            deep.append(merger(x.flatten(0, 1)))
    return [visual.merger(x.flatten(0, 1)), *deep]


def _grid_positions(visual: nn.Module, grid: tuple[int, int]) -> tuple[Tensor, Tensor, Tensor]:
    """Rotary cos and sin [patches, 1, head] and the learned position [patches, hidden]."""
    thw = torch.tensor([[1, *grid]])
    merge = visual.spatial_merge_size
    indices, weights = get_vision_interpolation_indices_and_weights(
        thw, num_grid_per_side=visual.num_grid_per_side, mode=visual.interpolation_mode,
        align_corners=visual.interpolation_align_corners, spatial_merge_size=merge,
    )  # fmt: skip
    place = (visual.pos_embed(indices) * weights[:, :, None]).sum(1)
    cos, sin = visual.rotary_pos_emb(place, get_vision_position_ids(thw, merge))
    return cos[:, None], sin[:, None], place


def _vision_attention(attention: nn.Module, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    pictures, patches, width = x.shape
    qkv = attention.qkv(x).view(pictures, patches, 3, attention.num_heads, -1)
    q, k = _rotate(qkv[:, :, :2], cos[:, None], sin[:, None]).unbind(2)
    v = qkv[:, :, 2]
    y = F.scaled_dot_product_attention(q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2))
    return attention.proj(y.transpose(1, 2).reshape(pictures, patches, width))


def _rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    half = x.shape[-1] // 2
    return x * cos + torch.cat((-x[..., half:], x[..., :half]), dim=-1) * sin


def _text_hidden(text: nn.Module, batch: Batch, features: list[Tensor]) -> Tensor:
    """Last hidden states [R, L, hidden]."""
    image_at, image_row = torch.from_numpy(batch.image_at), torch.from_numpy(batch.image_row)
    features = [feature[image_row] for feature in features]
    x = text.embed_tokens(torch.from_numpy(batch.tokens))
    shape = x.shape
    x = x.flatten(0, 1).index_copy(0, image_at, features[0]).view(shape)
    cos, sin = text.rotary_emb(x, torch.from_numpy(batch.positions))
    mask = _mask(batch)
    for index, layer in enumerate(text.layers):
        x = x + _text_attention(layer.self_attn, _rms(layer.input_layernorm, x), cos, sin, mask)
        x = x + layer.mlp(_rms(layer.post_attention_layernorm, x))
        if index + 1 < len(features):
            x = x.flatten(0, 1).index_add(0, image_at, features[index + 1]).view(shape)
    return _rms(text.norm, x)


def _mask(batch: Batch) -> Tensor:
    """float [R, 1, L, L]: 0 where a token may look, -inf elsewhere."""
    document, branch = torch.from_numpy(batch.document), torch.from_numpy(batch.branch)
    length = document.shape[1]
    same_document = document[:, :, None] == document[:, None, :]
    visible_branch = (branch[:, None, :] == 0) | (branch[:, :, None] == branch[:, None, :])
    causal = torch.ones(length, length, dtype=torch.bool).tril()
    seen = same_document & visible_branch & causal
    return torch.zeros(seen.shape).masked_fill_(~seen, float("-inf"))[:, None]


def _text_attention(
    attention: nn.Module, x: Tensor, cos: Tensor, sin: Tensor, mask: Tensor
) -> Tensor:
    rows, length, _ = x.shape
    head = attention.head_dim
    q = _rms(attention.q_norm, attention.q_proj(x).view(rows, length, -1, head))
    k = _rms(attention.k_norm, attention.k_proj(x).view(rows, length, -1, head))
    v = attention.v_proj(x).view(rows, length, -1, head)
    heads = q.shape[2]
    qk = _rotate(torch.cat((q, k), dim=2), cos[:, :, None], sin[:, :, None]).transpose(1, 2)
    q, k = qk[:, :heads], qk[:, heads:]
    k, v = (
        y.repeat_interleave(attention.num_key_value_groups, dim=1) for y in (k, v.transpose(1, 2))
    )
    y = F.scaled_dot_product_attention(q, k, v, attn_mask=mask)
    return attention.o_proj(y.transpose(1, 2).reshape(rows, length, -1))


def _rms(norm: nn.Module, x: Tensor) -> Tensor:
    return F.rms_norm(x, (x.shape[-1],), norm.weight, norm.variance_epsilon)
