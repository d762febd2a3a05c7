"""Paths below a directory: opened without following links, and shown in messages.

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
    """Components of a relative path. Raises ValueError where one is ``..`` or it is absolute."""
    parts = [part for part in path.split(b"/") if part not in (b"", b".")]
    if path.startswith(b"/") or b".." in parts:
        raise ValueError(f"{path!r}: leaves the directory")
    return parts


def open_beneath(dir_fd: int, path: bytes, flags: int) -> int:
    """Open ``path`` below ``dir_fd``, following no symbolic link at any step."""
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
    """Opens directories below one, and keeps the last one open: files come by directory."""

    def __init__(self, dir_fd: int) -> None:
        self._root = dir_fd
        self._path = b""
        self._fd = dir_fd

    def open(self, path: bytes) -> int:
        """A descriptor of a directory, valid until the next call. Follows no link."""
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
    """A path as text for messages. Bytes that are not UTF-8 are escaped, and so are characters that
    would act on a terminal or break a line of a log."""
    return show_text(path.decode("utf-8", "surrogateescape"))


def show_text(text: str) -> str:
    """Text that contains names, escaped as by :func:`show_path`."""
    if text.isprintable():
        return text
    return "".join(one if one.isprintable() else _escaped(one) for one in text)


def _escaped(character: str) -> str:
    code = ord(character)
    if 0xDC80 <= code <= 0xDCFF:
        return f"\\x{code - 0xDC00:02x}"  # a byte, as ``surrogateescape`` has it
    return character.encode("unicode_escape").decode()


def unescaped(text: str) -> str:
    """A path of a table of the system, in which blanks and other characters are octal numbers, like
    ``\\\\040``."""
    raw = text.encode("utf-8", "surrogateescape")
    raw = _OCTAL.sub(lambda match: bytes([int(match[1], 8) & 0xFF]), raw)
    return raw.decode("utf-8", "surrogateescape")


def resolved(path: str) -> str:
    """An absolute path with links followed, but for a last name that leads to no directory: such a
    link may itself be a file of a volume."""
    whole = os.path.abspath(path)
    if os.path.isdir(whole):
        return os.path.realpath(whole)
    return os.path.join(os.path.realpath(os.path.dirname(whole)), os.path.basename(whole))


def lies_in(path: str, directory: str) -> bool:
    """Whether a path is a directory, or lies below it. Both are absolute."""
    return path == directory or path.startswith(directory.rstrip("/") + "/")


def refuse_part(path: str, places: Iterable[str], to: str) -> None:
    """Raise UsageError unless ``path`` is one of ``places``: the root and the mount points of a
    volume. A mistyped path below them must not act on all of it.

    ``to`` is what was to be done.
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
    """Make errors of the system name ``path`` instead of a name below a descriptor."""
    try:
        yield
    except OSError as error:
        raise OSError(error.errno, error.strerror, path) from error


def shown_place(path: AnyStr) -> AnyStr:
    """A path for a message: one that leads through a descriptor of this process, as the path that
    the descriptor has now."""
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
    """An error for a message; one of the system as file and reason."""
    if not isinstance(error, OSError):
        return str(error) or type(error).__name__
    where, reason = filename_of(error), error.strerror or str(error)
    if error.errno == errno.ENOSPC and os.path.isabs(where):
        reason = why_full(os.path.dirname(where))
    return f"{where}: {reason}" if where else reason


def filename_of(error: OSError) -> str:
    """The file that an error names, for a message.

    A call by descriptor has that number in its place. It is empty then: the number says nothing to
    people, and may be another file's by now.
    """
    name = error.filename
    return shown_place(os.fsdecode(name)) if isinstance(name, str | bytes | os.PathLike) else ""


def parents(path: AnyStr) -> list[AnyStr]:
    """A relative path and the directories above it, the uppermost first."""
    found = [path]
    while above := os.path.dirname(found[-1]):
        found.append(above)
    return found[::-1]
