"""Paths below a directory: opening without following links, and formatting for messages.

Native calls open many files at once with the same rules (``native/src/system/files.rs``).
"""

import errno
import os
import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import AnyStr

from dedupd_core.errors import UsageError
from dedupd_core.system.files import why_full

_BY_DESCRIPTOR = re.compile(r"/proc/(?:self|thread-self)/fd/[0-9]+(?=/|$)")
_OCTAL = re.compile(rb"\\([0-7]{3})")


def split_path(path: bytes) -> list[bytes]:
    """Split a relative path. Raises ValueError if a component is ``..`` or it is absolute."""
    parts = [part for part in path.split(b"/") if part not in (b"", b".")]
    if path.startswith(b"/") or b".." in parts:
        raise ValueError(f"{path!r}: leaves the directory")
    return parts


def open_beneath(dir_fd: int, path: bytes, flags: int) -> int:
    """Open ``path`` below ``dir_fd``, without following any symbolic link."""
    *parents, name = split_path(path) or [b"."]
    current = dir_fd
    try:
        for part in parents:
            step = os.open(
                part, os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=current
            )
            if current != dir_fd:
                os.close(current)
            current = step
        return os.open(name, flags | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=current)
    finally:
        if current != dir_fd:
            os.close(current)


class DirectoryOpener:
    """Opens directories below another, and keeps the last one open for the next file in it."""

    def __init__(self, dir_fd: int) -> None:
        self._root = dir_fd
        self._path = b""
        self._fd = dir_fd

    def open(self, path: bytes) -> int:
        """Open a directory; the descriptor is valid until the next call. Follows no link."""
        if path != self._path:
            self.close()
            self._fd = open_beneath(self._root, path, os.O_PATH | os.O_DIRECTORY)
            self._path = path
        return self._fd

    def open_file(self, path: bytes, flags: int) -> int:
        """Open a file, as :func:`open_beneath` does."""
        directory, _, name = path.rpartition(b"/")
        return os.open(
            name or b".", flags | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=self.open(directory)
        )

    def close(self) -> None:
        """Close the last directory."""
        if self._fd != self._root:
            os.close(self._fd)
        self._path, self._fd = b"", self._root


def show_path(path: bytes) -> str:
    """Format a path for messages. Escapes bytes that are not UTF-8, and characters that would
    control a terminal or break a line of a log."""
    return show_text(path.decode("utf-8", "surrogateescape"))


def show_text(text: str) -> str:
    """Format a text with names, escaped as by :func:`show_path`."""
    if text.isprintable():
        return text
    return "".join(one if one.isprintable() else _escaped(one) for one in text)


def _escaped(character: str) -> str:
    code = ord(character)
    if 0xDC80 <= code <= 0xDCFF:
        return f"\\x{code - 0xDC00:02x}"  # a byte, encoded by ``surrogateescape``
    return character.encode("unicode_escape").decode()


def unescaped(text: str) -> str:
    """Decode a path of a system table, with blanks and other characters as octal numbers:
    ``\\\\040``."""
    raw = text.encode("utf-8", "surrogateescape")
    raw = _OCTAL.sub(lambda match: bytes([int(match[1], 8) & 0xFF]), raw)
    return raw.decode("utf-8", "surrogateescape")


def resolved(path: str) -> str:
    """Return an absolute path with links resolved. A last name that leads to no directory is kept:
    such a link may itself be a file of a volume."""
    whole = os.path.abspath(path)
    if os.path.isdir(whole):
        return os.path.realpath(whole)
    return os.path.join(os.path.realpath(os.path.dirname(whole)), os.path.basename(whole))


def lies_in(path: str, directory: str) -> bool:
    """Return whether a path is a directory, or is below it. Both are absolute."""
    return path == directory or path.startswith(directory.rstrip("/") + "/")


def refuse_part(path: str, places: Iterable[str], to: str) -> None:
    """Raise UsageError unless ``path`` is one of ``places``.

    These are the root and the mount points of a volume: a mistyped path below them must not act on
    the entire volume. ``to``: the refused action.
    """
    mine = {os.path.abspath(path), os.path.realpath(path)}
    places = tuple(places)
    if any(mine & {os.path.abspath(place), os.path.realpath(place)} for place in places):
        return
    if not os.path.lexists(path):
        raise UsageError(f"{path}: no such directory")
    raise UsageError(
        f"{path}: is inside the volume {places[0]}; use that path to {to} the entire volume"
    )


@contextmanager
def named(path: str) -> Iterator[None]:
    """Make system errors name ``path`` instead of a name below a descriptor."""
    try:
        yield
    except OSError as error:
        raise OSError(error.errno, error.strerror, path) from error


def shown_place(path: AnyStr) -> AnyStr:
    """Format a path for a message: a path through a descriptor of this process is shown as the
    current path of the descriptor."""
    text = os.fsdecode(path)
    match = _BY_DESCRIPTOR.match(text)
    if match is None:
        return path
    try:
        place = os.readlink(match[0])
    except OSError:
        return path
    shown = f"{place.rstrip('/')}{text[match.end() :]}" or "/"
    return os.fsencode(shown) if isinstance(path, bytes) else shown


def explain(error: BaseException) -> str:
    """Format an error for a message; a system error as file and reason."""
    if not isinstance(error, OSError):
        return str(error) or type(error).__name__
    where, reason = filename_of(error), error.strerror or str(error)
    if error.errno == errno.ENOSPC and os.path.isabs(where):
        reason = why_full(os.path.dirname(where))
    return f"{where}: {reason}" if where else reason


def filename_of(error: OSError) -> str:
    """Return the file that an error names, for a message.

    For a call by descriptor, this is empty: the number of the descriptor is useless for people, and
    may belong to another file now.
    """
    name = error.filename
    return shown_place(os.fsdecode(name)) if isinstance(name, str | bytes | os.PathLike) else ""


def parents(path: AnyStr) -> list[AnyStr]:
    """Return a relative path and its parent directories, the uppermost first."""
    found = [path]
    while above := os.path.dirname(found[-1]):
        found.append(above)
    return found[::-1]
