"""What a `data:` URL holds (RFC 2397): base64, or bytes of which any may be percent-encoded.

In time and memory proportional to its length. Knows no fetching.
"""

import re

import numpy as np
import pybase64

from schemas.refusals import bad_request

_BAD_ESCAPE = re.compile("%(?![0-9A-Fa-f]{2})")
_PERCENT = ord("%")
_PIECE = 2**20
_DIGITS = np.zeros(256, np.uint8)
for _digit in "0123456789abcdefABCDEF":
    _DIGITS[ord(_digit)] = int(_digit, 16)


def split_data_url(url: str) -> tuple[str, str, bool]:
    """Media type, payload, and whether that is base64. Raise ApiError where it is malformed."""
    spec, comma, payload = url[len("data:") :].partition(",")
    if not comma:
        raise bad_request(f"Invalid data URL {url[:32]!r}: missing ',' separator.")
    kind, _, parameters = spec.partition(";")
    is_base64 = parameters.rpartition(";")[2].strip().lower() == "base64"
    if not is_base64 and "%" not in payload:  # plain text, and no medium is
        raise bad_request("Only base64 data URLs are supported for now.")
    return kind.strip(), payload, is_base64


def decode_payload(text: str, is_base64: bool) -> bytes:
    """Raise ApiError for what is neither base64 nor percent-encoded bytes."""
    return decode_base64(text) if is_base64 else unescaped(text)


def decode_base64(text: str) -> bytes:
    """Strictly, but for line breaks and blanks (RFC 2045) and what a URL may escape of it.

    Raise ApiError for anything that is not base64.
    """
    try:
        return pybase64.b64decode(text, validate=True)
    except ValueError as error:
        plain = unescaped(text).translate(None, b" \t\r\n\f\v")
        if len(plain) == len(text):
            raise bad_request(str(error)) from error
    try:
        return pybase64.b64decode(plain, validate=True)
    except ValueError as error:
        raise bad_request(str(error)) from error


def unescaped(text: str) -> bytes:
    """Raise ApiError for a percent sign that begins no escape."""
    if _BAD_ESCAPE.search(text):
        raise bad_request("Invalid data URL: '%' must be followed by two hexadecimal digits.")
    data = text.encode(errors="surrogatepass")
    if b"%" not in data:
        return data
    pieces = []
    start = 0
    while start < len(data):
        end = start + _PIECE
        escape = data.rfind(b"%", end - 2, end)  # not cut in two
        end = end if escape < 0 else escape
        pieces.append(_unescaped_piece(data[start:end]))
        start = end
    return b"".join(pieces)


def _unescaped_piece(data: bytes) -> bytes:
    """All at once: a loop over millions of escapes would hold the interpreter."""
    letters = np.frombuffer(data, np.uint8).copy()
    escapes = np.flatnonzero(letters == _PERCENT)
    letters[escapes] = _DIGITS[letters[escapes + 1]] * 16 + _DIGITS[letters[escapes + 2]]
    is_kept = np.ones(len(letters), bool)
    is_kept[escapes + 1] = is_kept[escapes + 2] = False
    return letters[is_kept].tobytes()
