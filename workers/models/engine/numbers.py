"""Whether an embedding's numbers are numbers. Needs numpy, and no tensor library."""

from typing import Any

import numpy as np

from runtime.storage import Embedding

_DTYPES = {"float32": "<f4", "float16": "<f2", "bfloat16": "<u2"}
_EXPONENT_OF_BFLOAT16 = 0x7F80
_PIECE = 1 << 20


def is_finite(embedding: Embedding) -> bool:
    """Blocking. Neither NaN nor infinite anywhere; no memory beyond a piece at a time."""
    values = np.frombuffer(embedding.data, _DTYPES[embedding.dtype])
    return all(_is_finite(values[i : i + _PIECE]) for i in range(0, len(values), _PIECE))


def _is_finite(values: "np.ndarray[Any, Any]") -> bool:
    if values.dtype.kind == "u":
        exponents = values & _EXPONENT_OF_BFLOAT16
        return not bool((exponents == _EXPONENT_OF_BFLOAT16).any())
    return bool(np.isfinite(values).all())
