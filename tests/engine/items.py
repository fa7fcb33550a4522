"""Multimodal items for tests: made from tensors, or changed."""

import base64

import torch

from schemas.mm_item import Field, Tensor, decode_item, encode_item
from workers.models.engine.fields import to_tensors


def field_of(tensor, *, keep_on_cpu=False):
    data = tensor.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()
    name = str(tensor.dtype).removeprefix("torch.")
    return Field(Tensor(name, tuple(tensor.shape), data), "batched", {"keep_on_cpu": keep_on_cpu})


def tensors_of(text):
    return to_tensors(decode_item(base64.b64decode(text)))


def with_field_of(text, other, name):
    """The first base64 item with one field of the second."""
    fields = dict(decode_item(base64.b64decode(text)))
    fields[name] = decode_item(base64.b64decode(other))[name]
    return base64.b64encode(encode_item(fields)).decode()
