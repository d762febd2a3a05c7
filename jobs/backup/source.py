"""A volume or a copy of a volume, to restore files from. Nothing in it is ever changed."""

import os
from contextlib import ExitStack

from dedupd_core import native
from dedupd_core.errors import CopiedStub, Damaged, NotAVolume, UsageError
from dedupd_core.format.container import Kind
from dedupd_core.format.stub import StubAttribute
from dedupd_core.format.volume_parameters import Parameters
from dedupd_core.stub.instance import instance_of
from dedupd_core.system.disk import Disk
from dedupd_core.system.file_system import block_bytes_of
from dedupd_core.system.files import opened, read_file
from dedupd_core.system.paths import open_beneath, show_path
from dedupd_core.system.processes import sees_trusted_attributes
from dedupd_core.volume.base_directory import BASE_NAME, VOLUME_FILE
from jobs.adopt.proof import NOT_TRUSTED, TRUSTED_WITH, VolumeCopy, has_chunks, prove
from jobs.frame.run import JobRun
from jobs.tree.walk import TreeFile, walk

_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC


class BackupSource(VolumeCopy):
    """The volume with the ``.dedupd``, under any name, at ``base``. Needs no rights except reading.

    It takes no lock, and records no damage.
    """

    def __init__(self, base: str) -> None:
        """Raises NotAVolume, Damaged, UnknownFormat, UsageError, OSError."""
        self.root = self.base = base
        self.disk = Disk()
        with ExitStack() as on_failure:
            self.base_fd = os.open(base, _DIRECTORY)
            on_failure.callback(os.close, self.base_fd)
            self.parameters = Parameters.from_json(
                read_file(self.base_fd, VOLUME_FILE), os.path.join(base, VOLUME_FILE.decode())
            )
            # Do not follow a link: it could lead anywhere, in a directory that another user made.
            self.data_fd = os.open(b"data", _DIRECTORY | os.O_NOFOLLOW, dir_fd=self.base_fd)
            on_failure.callback(os.close, self.data_fd)
            self._require_attributes()
            self.instance = instance_of(self.data_fd)
            self.space = self.space_of(self.instance)
            on_failure.pop_all()
        self.block_bytes = block_bytes_of(self.data_fd)

    @classmethod
    def at(cls, root: str, base_fd: int, disk: Disk | None = None) -> "BackupSource":
        raise NotImplementedError("a source is opened by its path: see `found`")

    @classmethod
    def found(cls, path: str) -> "BackupSource":
        """Open the volume of this directory, or of this ``.dedupd``. Raises the errors of the
        class."""
        path = os.path.abspath(path)
        for base in (path, os.path.join(path, BASE_NAME)):
            if os.path.isfile(os.path.join(base, VOLUME_FILE.decode())):
                return cls(base)
        reason = (
            "no such directory"
            if not os.path.isdir(path)
            else ("neither a volume nor a copy of a volume")
        )
        raise NotAVolume(
            f"{path}: {reason}; use a directory that contains {BASE_NAME}/volume.json, or a copy"
            f" of {BASE_NAME}. If the volume is mounted, copy files from the mount"
        )

    def _require_attributes(self) -> None:
        """Raise UsageError if stubs would look like plain files of zeros."""
        name = self.parameters.attribute
        if name.startswith("trusted.") and not sees_trusted_attributes():
            raise UsageError(
                f"{self.root}: the attribute of its stubs, {name}, is visible only to root outside"
                " containers; run the command as root"
            )

    def note_damage(self, kind: Kind, record_id: int) -> None:
        """Do nothing: the source is not changed."""

    def refuse_ruins(self, run: JobRun) -> None:
        """Raise Damaged if a copy has no stub but its store has chunks: stubs then look like files
        of zeros."""
        if self.is_the_volume or not has_chunks(self):
            return
        has_content = False
        for found in walk(self, b"", [], run.safe_point):
            if found.is_stub:
                return
            has_content |= found.identity.size > 0
        if has_content:
            raise Damaged(
                f"{self.root}: no file of this copy has the attribute {self.parameters.attribute},"
                " but its store has chunks. The program that made the copy did not copy the"
                " attributes, so the contents of the stubs are missing; docs/guide/backup.md lists"
                " suitable programs"
            )

    def refuse_spoilt(self, run: JobRun) -> None:
        """Raise Damaged if a stub disproves the user's claim about the copy's holes. Then nothing
        can prove a stub that was written to."""
        if self.is_the_volume:
            return
        for found in walk(self, b"", [], run.safe_point):
            if found.is_stub and self._shows_damage(found):
                raise Damaged(
                    f"{self.root}: {NOT_TRUSTED}; to restore the other files, run the command"
                    " without this option"
                )

    def _shows_damage(self, found: TreeFile) -> bool:
        try:
            with opened(open_beneath(self.data_fd, found.path, os.O_RDONLY | os.O_NONBLOCK)) as fd:
                value = found.attribute or b""
                return prove(self, fd, value, "").verdict.is_spoilt
        except (Damaged, OSError):
            return True

    def proved(self, fd: int, path: bytes, trusts_holes: bool) -> StubAttribute | None:
        """Return the attribute of an open file whose content is to be read; None if it is plain.

        ``trusts_holes``: the user claims that the copy has the volume's holes. Raises DamagedStub
        if nothing proves that the content is unchanged.
        """
        value = native.system.fgetxattr(fd, self.space.name)
        if value is None:
            return None
        where = show_path(path)
        stub, _, verdict = prove(self, fd, value, where)
        if verdict.is_spoilt:
            raise CopiedStub(f"{where}: {verdict.reason}; restore it from another backup")
        if verdict.reason and not trusts_holes:
            raise CopiedStub(f"{where}: {verdict.reason}; {TRUSTED_WITH}")
        return stub
