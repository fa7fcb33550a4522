"""What an item's tensors and embedding are kept under, so that no caller can name another's.

The wire has one name, the hash in `mm_hashes`, and some of these are chosen by callers: a uuid, or
a hash beside tensors that they sent. Inside, a name says besides the hash who may use it, and for
tensors of a caller what they are. Pure; knows no store.
"""

import hashlib
import json

from schemas.ec import is_plain_hash

DERIVED = "="
"""No hash is its own name if it begins so: a caller could spell a derived name then."""


def entry_key(mm_hash: str, *, tenant: str = "", salt: str | None = None, content: str = "") -> str:
    """A plain name. The hash itself for what was rendered from bytes by nobody in particular.

    `content` is the digest of tensors that came with the request instead of being made from bytes.
    """
    is_plain = is_plain_hash(mm_hash) and not mm_hash.startswith(DERIVED)
    if is_plain and not tenant and salt is None and not content:
        return mm_hash
    return _derived("entry", mm_hash, tenant, salt, content)


def announced_key(mm_hash: str, *, tenant: str = "", salt: str | None = None) -> str:
    """Where a request that brings nothing but the hash finds what its tenant published under it.

    Nothing that was rendered from bytes is looked up here.
    """
    return _derived("announced", mm_hash, tenant, salt)


def _derived(*parts: str | None) -> str:
    text = json.dumps(parts).encode()
    return DERIVED + hashlib.blake2b(text, digest_size=32).hexdigest()
