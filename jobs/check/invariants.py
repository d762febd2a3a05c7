"""The invariants of a volume, each stated once, and the report of a violation."""

import enum
from dataclasses import dataclass


class Invariant(enum.StrEnum):
    """The names that findings carry; :data:`INVARIANTS` has the meaning of each."""

    CONTAINER_HEADER = "container-header"
    CONTAINER_RECORDS = "container-records"
    RECORD_PAYLOAD = "record-payload"
    RECORD_FINGERPRINT = "record-fingerprint"
    DELTA_BASE = "delta-base"
    TABLE_AGREES = "table-agrees"
    MERGED_TARGET = "merged-target"
    MERGE_ENDS = "merge-ends"
    PARTITION_AGREES = "partition-agrees"
    DOMAIN_AGREES = "domain-agrees"
    SET_DISTINCT = "set-distinct"
    MERGE_LOG = "merge-log"
    COPY_AGREES = "copy-agrees"
    PRIMARY_THERE = "primary-there"
    STUB_ATTRIBUTE = "stub-attribute"
    STUB_PLACE = "stub-place"
    STUB_BLOCKS = "stub-blocks"
    STUB_RECIPE = "stub-recipe"
    RECIPE_CHUNKS = "recipe-chunks"
    TREE_READABLE = "tree-readable"


INVARIANTS = {
    Invariant.CONTAINER_HEADER: (
        "every container exists, and starts with a valid header of this volume"
    ),
    Invariant.CONTAINER_RECORDS: (
        "every byte of a container belongs to an existing record, or to a record that is known to"
        " be lost"
    ),
    Invariant.RECORD_PAYLOAD: "every payload matches its checksum and decodes to its raw length",
    Invariant.RECORD_FINGERPRINT: "every payload's raw bytes have the fingerprint in the header",
    Invariant.DELTA_BASE: "every base of a live record exists, and has a lower rank",
    Invariant.TABLE_AGREES: "the redirection table agrees with the records",
    Invariant.MERGED_TARGET: "every merged entry leads to a chunk of the same fingerprint",
    Invariant.MERGE_ENDS: "every chain of merged entries ends at a record that was not merged",
    Invariant.PARTITION_AGREES: "a container and its redirection table name the same partition",
    Invariant.DOMAIN_AGREES: "no record leads to, or depends on, a record of another domain",
    Invariant.SET_DISTINCT: "no chunk is in the reconciled set twice",
    Invariant.MERGE_LOG: "a finished merge log is complete, and of this volume",
    Invariant.COPY_AGREES: "every second copy has the fingerprint of its original",
    Invariant.PRIMARY_THERE: "no file depends on a second copy alone",
    Invariant.STUB_ATTRIBUTE: "every stub attribute decodes and belongs to this volume",
    Invariant.STUB_PLACE: "every stub is the file that its attribute was made for, and not a copy",
    Invariant.STUB_BLOCKS: "the local blocks of every stub agree with the count in its attribute",
    Invariant.STUB_RECIPE: (
        "every stub's recipe exists, has the fingerprint that the stub states, and is long enough"
    ),
    Invariant.RECIPE_CHUNKS: (
        "every chunk of a recipe exists, with the length and the check that the recipe states"
    ),
    Invariant.TREE_READABLE: "every directory of the tree is readable",
}

OF_FILES = frozenset(
    (
        Invariant.STUB_ATTRIBUTE,
        Invariant.STUB_PLACE,
        Invariant.STUB_BLOCKS,
        Invariant.STUB_RECIPE,
        Invariant.RECIPE_CHUNKS,
    )
)
"""Where one of these is violated, bytes of a user's file are lost; ``where`` is the file."""


@dataclass(frozen=True, slots=True)
class Finding:
    """A violated invariant: its name, and where."""

    invariant: str
    where: str
    detail: str
