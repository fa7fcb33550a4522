"""`ec_transfer_params`: where an encoder's output can be had, in both its forms (05 §2).

    seed   {"ec_items": [{"mm_hash": H, "peer_host": …, …}, …], …}
    vLLM   {H: {"peer_host": …, …}, …}

Opaque beyond that: unknown keys pass through. Knows no connector.
"""

import re
from collections.abc import Mapping
from typing import Any, TypeAlias

Descriptor: TypeAlias = dict[str, Any]

LIST_KEY, HASH_KEY = "ec_items", "mm_hash"
CONTENT_KEY = "content_digest"
"""Ours: which of the contents that callers sent under the hash is meant."""
_DIGEST = re.compile(r"[0-9a-f]{64}")
_PLAIN_HASH = re.compile(r"[A-Za-z0-9_:=+@-][A-Za-z0-9_:=+@.-]{0,199}")


def is_present(params: object) -> bool:
    """An empty object, an empty list and null count as absent."""
    return isinstance(params, dict | list) and bool(params)


def descriptors(params: Any) -> dict[str, Descriptor]:
    """Descriptor by hash, whichever form came; entries that name no hash are left out."""
    if isinstance(params, list):
        return _listed(params)
    if not isinstance(params, dict):
        return {}
    listed = params.get(LIST_KEY)
    mapped = {key: dict(value) for key, value in params.items() if isinstance(value, dict)}
    return mapped | _listed(listed if isinstance(listed, list) else [])


def _listed(entries: list[Any]) -> dict[str, Descriptor]:
    return {
        entry[HASH_KEY]: {key: value for key, value in entry.items() if key != HASH_KEY}
        for entry in entries
        if isinstance(entry, dict) and isinstance(entry.get(HASH_KEY), str)
    }


def content_of(descriptor: Descriptor) -> str:
    """The digest that a descriptor names; empty where it names none."""
    digest = descriptor.get(CONTENT_KEY)
    return digest if isinstance(digest, str) and _DIGEST.fullmatch(digest) else ""


def descriptor_of(
    known: Mapping[str, Descriptor], *, key: str, mm_hash: str, content: str
) -> Descriptor | None:
    """An item's descriptor, named by its key or its hash; none that is about other content."""
    for name in (key, mm_hash):
        if name in known and content_of(known[name]) in ("", content):
            return known[name]
    return None


def seed_form(found: Mapping[str, Descriptor]) -> dict[str, Any]:
    return {LIST_KEY: [{HASH_KEY: mm_hash, **rest} for mm_hash, rest in found.items()]}


def vllm_form(found: Mapping[str, Descriptor]) -> dict[str, Any]:
    return {mm_hash: dict(rest) for mm_hash, rest in found.items()}


def is_plain_hash(text: str) -> bool:
    """Safe as a file name and an object key: no separators, no leading dot, bounded."""
    return _PLAIN_HASH.fullmatch(text) is not None
