"""Records that deletions need: what can be had back for a while counts as needed."""

from dedupd_core.deleted.expiry import ExpiredDeletions, expire
from dedupd_core.deleted.log import DeletionLogs
from dedupd_core.errors import PolicyError
from dedupd_core.format.stub import Flag
from dedupd_core.native.upkeep import Marks, Needs
from dedupd_core.system.files import free_space
from dedupd_core.volume.volume import Volume
from jobs.frame.run import JobRun


class DeletionMarker:
    """Drops deletions whose time has come, or whose space is needed, and marks the rest.

    The first must come before the walk of the tree: a file that is restored from a deletion that is
    kept is in the tree then. The second must come after it: a file that the walk misses because it
    was deleted while the walk ran is in a log by then.
    """

    def __init__(self, volume: Volume, run: JobRun, *, dry_run: bool) -> None:
        """Raises OSError. Where the policy cannot be read, everything is kept."""
        self._volume = volume
        self._run = run
        self._logs = DeletionLogs(volume)
        self._expired = ExpiredDeletions({}, 0)
        try:
            policy = volume.policy()
        except PolicyError:
            return
        space = free_space(volume.data_fd)
        self._expired = expire(volume, policy, space, run.safe_point, dry_run=dry_run)

    @property
    def early(self) -> int:
        """How many deletions were dropped before their time, because the space is needed."""
        return self._expired.early

    def mark(self, chunks: Marks, recipes: Needs) -> int:
        """Mark the records of all that is left; returns how many deletions these are. A record that
        is not there any more is none: then the store has lost more than a deletion."""
        count = 0
        for number in self._logs.numbers():
            self._run.safe_point()
            for at, deletion in self._logs.read(number):
                if self._expired.has(at):
                    continue
                stub = deletion.stub
                if stub.flags & Flag.DIRECT:
                    chunks.add([stub.recipe] if chunks.knows(stub.recipe) else [])
                elif recipes.knows(stub.recipe):
                    recipes.need(stub.recipe, stub.covered)
                count += 1
        return count
