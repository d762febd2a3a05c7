"""A copy of a volume, opened to be taken over."""

from functools import cached_property

from dedupd_core import native
from dedupd_core.errors import Damaged
from dedupd_core.format.instance import Instance
from dedupd_core.stub.instance import recorded_instance
from dedupd_core.stub.transition import AttributeSpace
from dedupd_core.volume.volume import Volume


class VolumeCopy(Volume):
    """A volume wherever it lies. Its stubs may be those of a copy, and tell lies."""

    def check_place(self) -> None:
        """Any place will do."""

    @cached_property
    def recorded(self) -> Instance | None:
        """The place where it was a volume before; None where that is not known."""
        try:
            return recorded_instance(self.base_fd, self.root)
        except Damaged:
            return None

    @property
    def is_the_volume(self) -> bool:
        """Whether it is no copy at all."""
        return self.recorded == self.instance

    @property
    def space_before(self) -> AttributeSpace | None:
        """How stubs are recognised that nobody has copied, only the file system got a new uuid.

        Only where the generations of inodes are random. Those of btrfs are small numbers, which the
        inodes of a copy may have by chance.
        """
        recorded, here = self.recorded, self.instance
        if (
            recorded is None
            or self.is_the_volume
            or (recorded.inode, recorded.generation) != (here.inode, here.generation)
            or not native.system.file_system_kind(self.base_fd).has_random_generations
        ):
            return None
        return self.space_of(recorded)
