"""Every error that the program raises on purpose, with its exit status."""

from typing import Self

EXIT_DONE = 0
EXIT_FINDINGS = 1
EXIT_USAGE = 2
EXIT_BUSY = 3
EXIT_DAMAGED = 4


class DedupdError(Exception):
    """Base class. The message names the object, what is wrong with it, and what to do."""

    exit_status = EXIT_FINDINGS


class UsageError(DedupdError):
    """The caller asked for something that makes no sense."""

    exit_status = EXIT_USAGE


class NotAVolume(UsageError):
    """The path is not an enabled volume."""


class CopiedVolume(UsageError):
    """The volume was copied file by file, and is not taken over yet: see ``dedupd adopt``."""


class UnsuitableFileSystem(UsageError):
    """The file system below lacks something that stubs need."""


class PolicyError(UsageError):
    """A policy file or value is not valid."""


class ConfigurationError(UsageError):
    """The configuration of the service is not valid."""


_ANEW = "run `dedupd disable` of the version that wrote it, then `dedupd enable` of this version"
"""What to do about a volume in an old format."""


class UnknownFormat(UsageError):
    """Another version of the program wrote this, in a format that this version does not read."""

    @classmethod
    def of(cls, where: str, name: str, found: object, known: int, remedy: str = _ANEW) -> Self:
        """``name``: of the format. ``remedy``: for a format that is older than the known one."""
        text = f"{where}: {name} {found}; this program reads {known}"
        if isinstance(found, int) and found < known:
            return cls(f"{text} and no longer {found}; {remedy}")
        return cls(f"{text}; use the version of dedupd that wrote it, or a newer one")


class Busy(DedupdError):
    """Somebody else holds the volume, or a file of it, right now.

    ``passes``: it may help to wait a little; else something has to be finished first.
    """

    exit_status = EXIT_BUSY

    def __init__(self, message: str, *, passes: bool = True) -> None:
        super().__init__(message)
        self.passes = passes


class WriterFenced(Busy):
    """Another host has taken over what this process was writing; it can change nothing any more."""


class ServiceUnreachable(DedupdError):
    """The process that serves the mount does not answer."""

    exit_status = EXIT_BUSY


class StoreUnreachable(DedupdError):
    """The store of a volume lies apart from it, and cannot be opened now."""

    exit_status = EXIT_BUSY


class UnseenMember(DedupdError):
    """A volume of a shared store cannot be seen, or is not as the store last knew it."""

    exit_status = EXIT_BUSY


class ReadOnlyVolume(DedupdError):
    """The volume lies on a file system that takes no changes now; it can be read."""

    exit_status = EXIT_BUSY


class NoSpace(DedupdError):
    """The file system is too full to go on; nothing was changed by the step that failed."""


class OverQuota(NoSpace):
    """A quota is used up, that of the owner of a file, of its group or of its project: there may be
    space for other files."""


class FileChanged(DedupdError):
    """A file is no longer what it was when it was read; it was left alone."""


class AttributesFull(DedupdError):
    """A file has so many extended attributes that none can be added; the disk has space."""


class CatalogUnusable(DedupdError):
    """The catalogue cannot be read or written now; nothing that it holds is needed."""


class Damaged(DedupdError):
    """Stored data that is missing or does not match its checksum. Never returned as data."""

    exit_status = EXIT_DAMAGED


class DamagedContainer(Damaged):
    """A container file, its header or one of its records is damaged or missing."""


class DamagedChunk(DamagedContainer):
    """One record of a container cannot be read back as what was written.

    ``chunk_id`` is the id of the record.
    """

    def __init__(self, message: str, chunk_id: int) -> None:
        super().__init__(message)
        self.chunk_id = chunk_id


class DamagedTable(Damaged):
    """A redirection table is damaged; it is rebuilt from its container."""


class DamagedRecipe(Damaged):
    """A recipe does not decode, or is not the one that the stub names."""


class DamagedStub(Damaged):
    """A stub's attribute does not decode or belongs to another volume."""


class CopiedStub(DamagedStub):
    """A stub's attribute is sound, and of another inode: the stub was copied, or is in a copy."""


class TamperedStub(DamagedStub):
    """A stub has other blocks of its own than those that its attribute counts."""


class NoiseWritten(DedupdError):
    """Many files were overwritten with what looks encrypted: nothing of theirs is collected."""


def error_named(kind: str, message: str) -> DedupdError:
    """The error that another process reported, of its own class where that is one of these."""
    known = globals().get(kind)
    if isinstance(known, type) and issubclass(known, DedupdError):
        return known(message)
    return DedupdError(message)
