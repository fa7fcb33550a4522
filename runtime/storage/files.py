"""Files that are there whole or not at all: written aside, then moved into place. All calls block.

Knows no store; errors are OSError.
"""

import errno
import os
import shutil
import stat
import uuid
from collections.abc import Sequence
from contextlib import suppress
from typing import BinaryIO

_NO_FILE = frozenset(
    {
        errno.ENOENT, errno.ENOTDIR, errno.EISDIR, errno.ELOOP, errno.EACCES, errno.EPERM,
        errno.ENAMETOOLONG, errno.ENXIO, errno.ENODEV,
    }
)  # fmt: skip


def write_whole(path: str, chunks: Sequence[bytes], *, fsync: bool = False) -> None:
    """Replaces whatever is there."""
    aside = _write_aside(path, chunks, fsync=fsync)
    try:
        os.replace(aside, path)
    except OSError:
        _discard(aside)
        raise


def write_first(path: str, chunks: Sequence[bytes]) -> bool:
    """False, and nothing changed, where something is there."""
    aside = _write_aside(path, chunks)
    try:
        os.link(aside, path)
    except FileExistsError:
        return False
    finally:
        _discard(aside)
    return True


def link_whole(source: str, path: str) -> None:
    """Make the file at `source` also the one at `path`, in place of whatever is there."""
    folder, name = os.path.split(path)
    os.makedirs(folder, exist_ok=True)
    aside = f"{folder}/.{name}.{os.getpid()}-{uuid.uuid4().hex}"
    os.link(source, aside)
    try:
        os.replace(aside, path)
    finally:
        _discard(aside)  # still there where both were the same file already


def open_regular(path: str) -> BinaryIO | None:
    """Open for reading without following a link and without waiting for a pipe.

    None where no regular file of ours is there, whatever else may be.
    """
    try:
        number = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as error:
        if error.errno in _NO_FILE:
            return None
        raise
    if not stat.S_ISREG(os.fstat(number).st_mode):
        os.close(number)
        return None
    return os.fdopen(number, "rb")


def clear_way(path: str) -> bool:
    """Remove what keeps a file from being written at `path`; whether there was something.

    A folder in its place, or something else in place of its folder.
    """
    folder = os.path.dirname(path)
    if os.path.lexists(folder) and not os.path.isdir(folder):
        os.unlink(folder)
        return True
    if not os.path.isdir(path) or os.path.islink(path):
        return False
    shutil.rmtree(path)
    return True


def read_whole(path: str) -> bytes | None:
    """None where nothing is there."""
    try:
        with open(path, "rb", buffering=0) as file:
            return file.readall()
    except FileNotFoundError:
        return None


def why_unusable(folder: str) -> str | None:
    """Make a folder where none is, and say in words why its files cannot be read and written.

    A file is written to find out: permission bits do not tell of read-only mounts or of who asks.
    That there is no room is not asked here; it comes and goes while a process runs.
    """
    try:
        os.makedirs(folder, exist_ok=True)
        os.listdir(folder)
        probe = _write_aside(f"{folder}/probe", ())
        try:
            read_whole(probe)
        finally:
            os.unlink(probe)
    except (FileExistsError, NotADirectoryError) as error:
        return f"{error.filename} is not a folder"
    except OSError as error:
        is_full = error.errno in (errno.ENOSPC, errno.EDQUOT)
        return None if is_full else f"{error.filename}: {error.strerror}"
    except ValueError as error:  # a null byte
        return str(error)
    return None


def is_aside(name: str) -> bool:
    """Whether a file of that name is unfinished, or what a crashed writer left."""
    return name.startswith(".")


def _write_aside(path: str, chunks: Sequence[bytes], *, fsync: bool = False) -> str:
    folder, name = os.path.split(path)
    aside = f"{folder}/.{name}.{os.getpid()}-{uuid.uuid4().hex}"
    try:
        with _create(aside) as file:
            file.writelines(chunks)
            if fsync:
                file.flush()
                os.fsync(file.fileno())
    except OSError:
        _discard(aside)
        raise
    return aside


def _create(path: str) -> BinaryIO:
    for _ in range(2):
        try:
            return open(path, "xb")
        except FileNotFoundError:  # the first in its folder, or a sweep has just removed it
            os.makedirs(os.path.dirname(path), exist_ok=True)
    return open(path, "xb")


def _discard(path: str) -> None:
    with suppress(OSError):
        os.unlink(path)
