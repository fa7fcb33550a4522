"""Which partition a key belongs to, as every Kafka client decides it. Knows no transport."""

from functools import lru_cache

_MASK = 0xFFFFFFFF
_M = 0x5BD1E995
_SEED = 0x9747B28C


LONG_KEY_BYTES = 1024
"""From here on hashing takes milliseconds, and a key is somebody else's."""


def partition_for(key: bytes, num_partitions: int) -> int:
    """Kafka's default partitioner."""
    hashed = murmur2(key) if len(key) > LONG_KEY_BYTES else _hashed(key)
    return (hashed & 0x7FFFFFFF) % num_partitions


@lru_cache(maxsize=4096)
def _hashed(key: bytes) -> int:
    """Cached: a request's key is hashed at every hop."""
    return murmur2(key)


def murmur2(data: bytes) -> int:
    """The 32-bit MurmurHash2 with Kafka's seed."""
    whole = len(data) & ~3
    h = _SEED ^ len(data)
    for start in range(0, whole, 4):
        k = _scramble(int.from_bytes(data[start : start + 4], "little"))
        h = ((h * _M) & _MASK) ^ k
    if tail := data[whole:]:
        h = ((h ^ int.from_bytes(tail, "little")) * _M) & _MASK
    h = ((h ^ (h >> 13)) * _M) & _MASK
    return h ^ (h >> 15)


def _scramble(k: int) -> int:
    k = (k * _M) & _MASK
    return ((k ^ (k >> 24)) * _M) & _MASK
