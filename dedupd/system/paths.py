"""Paths below a directory: opened without following links, and shown to people."""

import os
from collections.abc import Iterator
from contextlib import contextmanager


def split_path(path: bytes) -> list[bytes]:
    """Components of a relative path. Raises ValueError where one is ``..`` or it is absolute."""
    parts = [part for part in path.split(b"/") if part not in (b"", b".")]
    if path.startswith(b"/") or b".." in parts:
        raise ValueError(f"{path!r} leaves the directory")
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
    """Opens directories below one, and keeps the last: files come directory by directory."""

    def __init__(self, dir_fd: int) -> None:
        self._root = dir_fd
        self._path = b""
        self._fd = dir_fd

    def open(self, path: bytes) -> int:
        """A descriptor to open names in, which lives until the next call. Follows no link."""
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
        """Let go of the last directory."""
        if self._fd != self._root:
            os.close(self._fd)
        self._path, self._fd = b"", self._root


def show_path(path: bytes) -> str:
    """A path as text for people; bytes that are not UTF-8 are shown escaped, and so is whatever
    would do something to a terminal or to the lines of a log."""
    return show_text(path.decode("utf-8", "surrogateescape"))


def show_text(text: str) -> str:
    """The same for text in which names occur."""
    if text.isprintable():
        return text
    return "".join(one if one.isprintable() else _escaped(one) for one in text)


def _escaped(character: str) -> str:
    code = ord(character)
    if 0xDC80 <= code <= 0xDCFF:
        return f"\\x{code - 0xDC00:02x}"  # a byte, as ``surrogateescape`` has it
    return character.encode("unicode_escape").decode()


def resolved(path: str) -> str:
    """An absolute path with links followed, but for a last name that leads to no directory: a link
    may itself be what is meant, as one of the files of a volume."""
    whole = os.path.abspath(path)
    if os.path.isdir(whole):
        return os.path.realpath(whole)
    return os.path.join(os.path.realpath(os.path.dirname(whole)), os.path.basename(whole))


@contextmanager
def named(path: str) -> Iterator[None]:
    """Have errors of the system name ``path``, and not what was opened below a descriptor."""
    try:
        yield
    except OSError as error:
        raise OSError(error.errno, error.strerror, path) from error


def explain(error: OSError) -> str:
    """An error of the system as people read it: the name, and what is wrong with it."""
    where = f"{os.fsdecode(error.filename)}: " if error.filename else ""
    return f"{where}{error.strerror or error}"
