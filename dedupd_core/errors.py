"""Every error that the program raises on purpose, with its exit status."""

from typing import Self

EXIT_DONE = 0
EXIT_FINDINGS = 1
EXIT_USAGE = 2
EXIT_BUSY = 3
EXIT_DAMAGED = 4


class DedupdError(Exception):
    """Base class. The message names the object, the problem, and what to do."""

    exit_status = EXIT_FINDINGS


class UsageError(DedupdError):
    """The caller requested an invalid operation."""

    exit_status = EXIT_USAGE


class NotAVolume(UsageError):
    """The path is not an enabled volume."""


class CopiedVolume(UsageError):
    """The volume was copied file by file, and is not adopted yet: see ``dedupd adopt``."""


class UnsuitableFileSystem(UsageError):
    """The file system below lacks a feature that stubs need."""


class PolicyError(UsageError):
    """A policy file or value is not valid."""


class ConfigurationError(UsageError):
    """The configuration of the service is not valid."""


_ANEW = "run `dedupd disable` of the version that wrote it, then `dedupd enable` of this version"
"""Remedy for a volume in an old format."""


class UnknownFormat(UsageError):
    """Another version of the program wrote this, in a format that this version cannot read."""

    @classmethod
    def of(cls, where: str, name: str, found: object, known: int, remedy: str = _ANEW) -> Self:
        """Return the error for the format ``name``. ``remedy``: what to do if it is older."""
        text = f"{where}: {name} {found}; this program reads {known}"
        if isinstance(found, int) and found < known:
            return cls(f"{text} and no longer {found}; {remedy}")
        return cls(f"{text}; use the version of dedupd that wrote it, or a newer one")


class Busy(DedupdError):
    """The volume, or a file of it, is in use.

    ``passes``: waiting a little may help; otherwise another operation must finish first.
    """

    exit_status = EXIT_BUSY

    def __init__(self, message: str, *, passes: bool = True) -> None:
        super().__init__(message)
        self.passes = passes


class WriterFenced(Busy):
    """Another host has taken over what this process was writing; now it can change nothing."""


class ServiceUnreachable(DedupdError):
    """The process that serves the mount does not answer."""

    exit_status = EXIT_BUSY


class StoreUnreachable(DedupdError):
    """The separate store of a volume cannot be opened now."""

    exit_status = EXIT_BUSY


class UnseenMember(DedupdError):
    """A volume of a shared store cannot be seen, or differs from the store's last record of it."""

    exit_status = EXIT_BUSY


class ReadOnlyVolume(DedupdError):
    """The file system of the volume is read-only now; the volume can be read."""

    exit_status = EXIT_BUSY


class NoSpace(DedupdError):
    """The file system is too full to continue; the failed step has changed nothing."""


class OverQuota(NoSpace):
    """A quota of the file's owner, group or project is used up; other files may have space."""


class FileChanged(DedupdError):
    """A file has changed since it was read; it was skipped."""


class CatalogUnusable(DedupdError):
    """The catalogue cannot be read or written now; no operation depends on its content."""


class Damaged(DedupdError):
    """Stored data that is missing or does not match its checksum. It is never returned as data."""

    exit_status = EXIT_DAMAGED


class DamagedContainer(Damaged):
    """A container file, its header or one of its records is damaged or missing."""


class DamagedChunk(DamagedContainer):
    """One record of a container does not have the bytes that were written.

    ``chunk_id`` is the id of the record.
    """

    def __init__(self, message: str, chunk_id: int) -> None:
        super().__init__(message)
        self.chunk_id = chunk_id


class DamagedTable(Damaged):
    """A redirection table is damaged; it is rebuilt from its container."""


class DamagedRecipe(Damaged):
    """A recipe does not decode, or differs from the recipe that the stub names."""


class DamagedStub(Damaged):
    """A stub's attribute does not decode or belongs to another volume."""


class CopiedStub(DamagedStub):
    """A stub's attribute is sound, but of another inode: the stub was copied, or is in a copy."""


class TamperedStub(DamagedStub):
    """A stub has other local blocks than its attribute counts."""


class NoiseWritten(DedupdError):
    """Many files were overwritten with bytes that look encrypted: old data is not collected."""


def error_named(kind: str, message: str) -> DedupdError:
    """Return an error that another process reported, of its own class if that is defined here."""
    known = globals().get(kind)
    if isinstance(known, type) and issubclass(known, DedupdError):
        return known(message)
    return DedupdError(message)
