"""Records that deletions need: what can be had back for a while counts as needed."""

from dedupd.deleted.expiry import expire
from dedupd.deleted.log import DeletionLogs
from dedupd.errors import PolicyError
from dedupd.format.stub import Flag
from dedupd.store.mark_set import Marks, Needs
from dedupd.system.files import free_space
from dedupd.volume.volume import Volume
from jobs.frame.run import JobRun


class DeletionMarker:
    """Takes the logs away that have had their time, or whose space is needed, and marks the rest.

    The first must come before the walk of the tree: what is had back of a log that is there still
    is in the tree then. The second must come after it: what the walk misses because it was deleted
    meanwhile is in a log by then.
    """

    def __init__(self, volume: Volume, run: JobRun, *, dry_run: bool) -> None:
        """Raises OSError. Where the policy cannot be read, everything is kept."""
        self._volume = volume
        self._run = run
        self._logs = DeletionLogs(volume)
        self._gone = frozenset[int]()
        self.early = 0
        try:
            policy = volume.policy()
        except PolicyError:
            return
        space = free_space(volume.data_fd)
        found = expire(self._logs, policy, space, volume.disk, dry_run=dry_run)
        self._gone, self.early = found.logs, found.early

    def mark(self, chunks: Marks, recipes: Needs) -> int:
        """Mark the records of all that is left; returns how many deletions these are. A record that
        is not there any more is none: then the store has lost more than a deletion."""
        count = 0
        for number in self._logs.numbers():
            if number in self._gone:
                continue
            self._run.safe_point()
            for _, one in self._logs.read(number):
                stub = one.stub
                if stub.flags & Flag.DIRECT:
                    chunks.add([stub.recipe] if chunks.knows(stub.recipe) else [])
                elif recipes.knows(stub.recipe):
                    recipes.need(stub.recipe, stub.covered)
                count += 1
        return count
