"""Pillow's pixels without a copy, by the Arrow C data interface that it exports.

https://arrow.apache.org/docs/format/CDataInterface.html. Knows no tensor library.
"""

import ctypes
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from PIL import Image


class _Array(ctypes.Structure):
    """The head of struct ArrowArray."""

    _fields_ = (
        ("length", ctypes.c_int64),
        ("null_count", ctypes.c_int64),
        ("offset", ctypes.c_int64),
        ("n_buffers", ctypes.c_int64),
        ("n_children", ctypes.c_int64),
        ("buffers", ctypes.POINTER(ctypes.c_void_p)),
        ("children", ctypes.POINTER(ctypes.c_void_p)),
    )


_pointer = ctypes.pythonapi.PyCapsule_GetPointer
_pointer.restype = ctypes.c_void_p
_pointer.argtypes = [ctypes.py_object, ctypes.c_char_p]


def memory_of(image: "Image.Image") -> Any:
    """A loaded picture's bytes, row by row: one per pixel, or four where it has colours (RGBX).

    They live as long as what is returned. Where Pillow keeps a large picture in several pieces, a
    copy, of three bytes per pixel in RGB.
    """
    try:
        _, capsule = image.__arrow_c_array__()
    except ValueError:
        return image.tobytes()
    array = _Array.from_address(_pointer(capsule, b"arrow_array"))
    if array.n_children:  # a list of four bytes for each pixel
        array = _Array.from_address(array.children[0])
    memory = (ctypes.c_uint8 * array.length).from_address(array.buffers[1])
    memory.owner = capsule
    return memory
