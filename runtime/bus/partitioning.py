"""Which partition a key belongs to, as every Kafka client decides it. Knows no transport."""

from functools import lru_cache

_MASK = 0xFFFFFFFF
_M = 0x5BD1E995
_SEED = 0x9747B28C


@lru_cache(maxsize=4096)
def partition_for(key: bytes, num_partitions: int) -> int:
    """Kafka's default partitioner. Cached: a request's key is hashed at every hop."""
    return (murmur2(key) & 0x7FFFFFFF) % num_partitions


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
