"""Containers, batches, groups and saved indexes so small that a scenario has several of them."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial

import pytest

from dedupd_core.index import hooks
from dedupd_core.index.bloom_index import BloomIndex
from dedupd_core.index.table_index import TableIndex
from dedupd_core.store.writer import ContainerWriter
from tests.crash.scenarios import KIB

CONTAINER_BYTES = 12 * KIB


# --- small parts of large things --------------------------------------------------------------


@contextmanager
def small_parts() -> Iterator[None]:
    """Containers of some KiB, appended to by many small batches."""
    small = partial(ContainerWriter, container_bytes_max=CONTAINER_BYTES)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("dedupd_core.volume.container_numbers.ContainerWriter", small)
        for name in ("BATCH_BYTES", "BATCH_BYTES_MIN"):
            patch.setattr(f"jobs.optimize.batch_reader.{name}", 64 * KIB)
        yield


@contextmanager
def saved_indexes() -> Iterator[None]:
    """Indexes that are saved however small they are."""
    with pytest.MonkeyPatch.context() as patch:
        for index in (TableIndex, BloomIndex):
            patch.setitem(index.__init__.__kwdefaults__ or {}, "saved_entries_min", 1)
        yield


@contextmanager
def hooks_of_few() -> Iterator[None]:
    """Chunks of other partitions are looked for however few these have."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(hooks, "ENTRIES_MIN", 1)
        yield


@contextmanager
def partitions_in_turns(group_files: int) -> Iterator[None]:
    """Partitions that save their indexes and look into one another, and groups of few files."""
    with saved_indexes(), hooks_of_few(), pytest.MonkeyPatch.context() as patch:
        patch.setattr("jobs.optimize.rounds.GROUP_FILES_MAX", group_files)
        yield


def with_parts(around: Callable[[], object], function: Callable[..., None]) -> Callable[..., None]:
    """``function``, carried out with small parts or saved indexes."""

    def run(*arguments: object) -> None:
        with around():  # type: ignore[attr-defined]
            function(*arguments)

    return run
