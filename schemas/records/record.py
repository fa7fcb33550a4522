"""What all records of this package share: msgpack of a validated model, and nothing else."""

from typing import Self

import msgpack
from pydantic import BaseModel, ConfigDict, ValidationError

from schemas.errors import DecodeError


class RecordModel(BaseModel):
    """Fields at their defaults do not travel."""

    model_config = ConfigDict(extra="forbid")

    def encode(self) -> bytes:
        packed: bytes = msgpack.packb(self.model_dump(exclude_defaults=True))
        return packed

    @classmethod
    def decode(cls, data: bytes | None) -> Self:
        """Raise DecodeError for anything else."""
        try:
            return cls.model_validate(msgpack.unpackb(data or b"", strict_map_key=False))
        except (ValidationError, ValueError, msgpack.UnpackException) as error:
            raise DecodeError(f"not a {cls.__name__}: {error}") from error
