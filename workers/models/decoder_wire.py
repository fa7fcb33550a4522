"""Messages between a process and its decoders: a map, and at most one file descriptor.

Four bytes of length, then msgpack. Knows no media.
"""

import os
import socket
import struct
import tempfile
from typing import Any

import msgpack

Message = dict[str, Any]

_LENGTH = struct.Struct("<L")


def send(peer: socket.socket, message: Message, descriptor: int | None = None) -> None:
    """Raise OSError where the other side is gone."""
    data = msgpack.packb(message)
    head = [_LENGTH.pack(len(data))]
    if descriptor is None:
        peer.sendall(head[0])
    else:
        socket.send_fds(peer, head, [descriptor])
    peer.sendall(data)


def receive(peer: socket.socket) -> tuple[Message, int | None]:
    """The next message; whoever gets a descriptor closes it. Raise EOFError where there is none."""
    head, descriptors, _, _ = socket.recv_fds(peer, _LENGTH.size, 1)
    try:
        head += _exactly(peer, _LENGTH.size - len(head))
        message: Message = msgpack.unpackb(
            _exactly(peer, _LENGTH.unpack(head)[0]), strict_map_key=False
        )
    except BaseException:
        for descriptor in descriptors:
            os.close(descriptor)
        raise
    return message, descriptors[0] if descriptors else None


def _exactly(peer: socket.socket, size: int) -> bytes:
    received = bytearray()
    while len(received) < size:
        piece = peer.recv(size - len(received))
        if not piece:
            raise EOFError("the other side is gone")
        received += piece
    return bytes(received)


def memory_file() -> int:
    """A descriptor of a file without a name, in memory where the system has such."""
    if hasattr(os, "memfd_create"):
        return os.memfd_create("pixels", os.MFD_CLOEXEC)
    with tempfile.TemporaryFile() as file:
        return os.dup(file.fileno())
