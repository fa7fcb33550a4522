"""How far a picture may be enlarged. Data in, data out."""

from schemas.refusals import bad_request

MAX_RESIZED = 2**25
"""Pixels of a picture that is resized before most of it is cut off: a side ratio of about 300 for
towers that take 336 x 336."""


def check_area(height: int, width: int) -> None:
    """Raise ApiError where resizing alone would take too much memory and time."""
    if height * width > MAX_RESIZED:
        raise bad_request(
            f"the picture would have to be resized to {width}x{height}, more than {MAX_RESIZED}"
            " pixels: its sides differ too much, or too large a size is asked for"
        )
