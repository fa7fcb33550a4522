"""Where things lie in a store, as files or as objects alike. Data in, data out.

`blobs/<first two of the digest>/<digest>` and `named/<name>`.
"""

from runtime.storage.names import require_path

REFRESH_AFTER_S = 600.0
"""A repeat writes again once the object is older; a sweep's age must be well above."""
STORE_ID = "store-id"
"""A named object that is never swept: who reads the same value shares the store."""
SWEPT = ("blobs", "named")


def blob_key(digest: str) -> str:
    return f"blobs/{digest[:2]}/{require_path(digest)}"


def named_key(name: str) -> str:
    return f"named/{require_path(name)}"
