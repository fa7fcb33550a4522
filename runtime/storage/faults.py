"""Tells a store that is away from a name that can never work. Data in, data out."""

import errno

from runtime.errors import StoreAway, StoreError, StoreRefused

_HOPELESS = frozenset(
    {errno.EILSEQ, errno.EINVAL, errno.EISDIR, errno.ELOOP, errno.ENAMETOOLONG, errno.EFBIG}
)


def store_error(error: OSError, what: str) -> StoreError:
    """What a failure of the file system means for who asked for `what`."""
    kind = StoreRefused if error.errno in _HOPELESS else StoreAway
    return kind(f"{what}: {error.strerror or type(error).__name__}")
