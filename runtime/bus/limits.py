"""How large a record may be, per topic; both buses refuse alike. Derived from `schemas.topics`."""

from schemas.topics import MAX_RECORD_BYTES, MAX_REQUEST_RECORD_BYTES, Topics

# Key, headers and framing around a value of the largest size.
OVERHEAD_BYTES = 64 * 1024
LARGEST_BYTES = MAX_REQUEST_RECORD_BYTES + OVERHEAD_BYTES


def max_bytes_of(topic: str, topics: Topics) -> int:
    """Largest record of a topic, key and headers included."""
    limit = MAX_REQUEST_RECORD_BYTES if topic == topics.requests else MAX_RECORD_BYTES
    return limit + OVERHEAD_BYTES
