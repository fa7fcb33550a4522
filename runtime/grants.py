"""How an ingress vouches for a body that it has put into the store.

A reference in a record is believed only with a grant under the request's own id: who can write to a
topic, but not to the store, cannot have somebody else's body executed by naming its digest.
"""

from runtime.storage import BlobStore
from schemas.envelope import BlobRef


async def grant(blobs: BlobStore, request_id: str, body: BlobRef) -> None:
    """To be written before the record that refers to the body."""
    # A store that is not shared is read by no other process, and nor are the records.
    if blobs.is_shared:
        await blobs.put_named(_name(request_id), body.digest.encode())


async def is_granted(blobs: BlobStore, request_id: str, body: BlobRef) -> bool:
    if not blobs.is_shared:
        return True
    return await blobs.get_named(_name(request_id)) == body.digest.encode()


def _name(request_id: str) -> str:
    return f"admitted/{request_id}"
