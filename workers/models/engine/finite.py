"""Ends a computation whose numbers stop being numbers, and says whose fault that is."""

import torch
from torch import Tensor

from schemas.errors import ApiError


def require_finite(values: Tensor, what: str, *, by_caller: bool) -> None:
    """ApiError where any value is NaN or infinite: 400 about a caller's tensors, else 500."""
    if not values.is_floating_point() or bool(torch.isfinite(values).all()):
        return
    raise not_finite(what, by_caller=by_caller)


def require_finite_peak(logits: Tensor, what: str, *, by_caller: bool) -> None:
    """The same for logits, of which any may be minus infinity, but not all in a row.

    The largest tells: it is NaN where any is.
    """
    if not bool(torch.isfinite(logits.amax(-1)).all()):
        raise not_finite(what, by_caller=by_caller)


def not_finite(what: str, *, by_caller: bool) -> ApiError:
    if by_caller:
        return ApiError(
            f"{what} is not finite: the tensors sent with the request are no input of this model.",
            param="kwargs_data",
        )
    return ApiError(
        f"{what} is not finite. The request was ended; another one is not concerned.",
        status=500,
        type="InternalServerError",
    )
