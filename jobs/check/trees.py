"""The references of all volumes of a store: a record is needed if any of them needs it."""

from collections.abc import Iterator
from dataclasses import dataclass, replace

from dedupd.volume.volume import Volume
from jobs.check.invariants import Finding
from jobs.check.losses import Loss, losses
from jobs.check.record_census import RecordCensus
from jobs.check.references import Missing, References, ReferenceWalk
from jobs.frame.run import JobRun


@dataclass(frozen=True, slots=True)
class Tree:
    """One volume, and what its tree refers to. ``prefix`` tells its paths from those of others."""

    volume: Volume
    references: References
    prefix: str


class Trees:
    """The trees of a volume and of its ``fellows``, all of which the job holds."""

    def __init__(self, trees: list[Tree]) -> None:
        self.trees = trees

    @classmethod
    def walked(
        cls,
        volume: Volume,
        run: JobRun,
        chunks: RecordCensus,
        nodes: RecordCensus,
        *,
        is_exact: bool = False,
        threads: int = 0,
    ) -> "Trees":
        """Go through all of them. Raises Cancelled."""
        trees = []
        for one in (volume, *volume.fellows):
            walk = ReferenceWalk(one, run, chunks, nodes, is_exact=is_exact, threads=threads)
            prefix = "" if one is volume else f"{one.root}/"
            trees.append(Tree(one, walk.walk(), prefix))
        return cls(trees)

    @property
    def stubs(self) -> int:
        return sum(one.references.stubs for one in self.trees)

    @property
    def plain_files(self) -> int:
        return sum(one.references.plain_files for one in self.trees)

    @property
    def logical_bytes(self) -> int:
        return sum(one.references.logical_bytes for one in self.trees)

    @property
    def unsettled(self) -> int:
        return sum(one.references.unsettled for one in self.trees)

    @property
    def findings(self) -> list[Finding]:
        return [
            replace(found, where=tree.prefix + found.where)
            for tree in self.trees
            for found in tree.references.findings
        ]

    @property
    def missing_chunks(self) -> dict[int, Missing]:
        merged: dict[int, Missing] = {}
        for tree in self.trees:
            for record_id, missing in tree.references.missing_chunks.items():
                merged.setdefault(record_id, missing)
        return merged

    @property
    def missing_nodes(self) -> set[int]:
        return set().union(*(tree.references.missing_nodes for tree in self.trees))

    def losses(self, run: JobRun, chunks: RecordCensus) -> Iterator[Loss]:
        """The losses of all files that refer to something that is not there. Raises Cancelled."""
        for tree in self.trees:
            for path in tree.references.suspects:
                run.safe_point()
                for loss in losses(tree.volume, path, chunks):
                    yield replace(loss, path=tree.prefix + loss.path)
