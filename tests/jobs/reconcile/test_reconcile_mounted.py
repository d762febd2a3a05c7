"""Reconciliation under a mount whose users go on reading and writing."""

import os
import threading
from pathlib import Path

import pytest

from dedupd_core.units import KIB
from tests.support.lab import noise
from tests.support.mounts import MountedLab, mounted_lab
from tests.support.upkeep import PLAIN, reconcile

pytestmark = pytest.mark.root

READERS = 3


class Readers:
    """Threads that read files over and over, past the kernel's cache; any wrong byte is told."""

    def __init__(self, view: Path, contents: dict[str, bytes]) -> None:
        self._view = view
        self._contents = contents
        self._stop = threading.Event()
        self.rounds = [0] * READERS
        self.wrong: list[str] = []
        self._threads = [threading.Thread(target=self._read, args=(n,)) for n in range(READERS)]

    def __enter__(self) -> "Readers":
        for thread in self._threads:
            thread.start()
        self.wait_for_a_round()
        return self

    def __exit__(self, *_: object) -> None:
        self.wait_for_a_round()
        self._stop.set()
        for thread in self._threads:
            thread.join()

    def wait_for_a_round(self) -> None:
        """Until every reader has been through all files once more."""
        before = list(self.rounds)
        while any(now <= then + 1 for now, then in zip(self.rounds, before, strict=True)):
            assert all(thread.is_alive() for thread in self._threads), self.wrong
            self._stop.wait(0.01)

    def _read(self, number: int) -> None:
        while not self._stop.is_set():
            for name, content in self._contents.items():
                try:
                    fd = os.open(self._view / name, os.O_RDONLY)
                    try:
                        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
                        found = os.pread(fd, len(content) + 1, 0)
                    finally:
                        os.close(fd)
                except OSError as error:
                    self.wrong.append(f"{name}: {error}")
                    return
                if found != content:
                    self.wrong.append(f"{name}: other bytes")
                    return
            self.rounds[number] += 1


def test_readers_notice_nothing_while_partitions_become_one(tmp_path: Path) -> None:
    with mounted_lab(tmp_path) as lab:
        lab.unmount()
        lab.mount(cache_bytes=64 * KIB)  # a chunk or two: every read goes to the store
        lab.set_policy(PLAIN + "partitions = 4\n")
        shared = noise(400 * KIB, 99)
        contents = {}
        for n in range(4):
            contents[f"shared.t{n}"] = shared
            contents[f"own.t{n}"] = noise(150 * KIB, n) + shared
        _put(lab, contents)
        with Readers(lab.view, contents) as readers:
            merged = reconcile(lab).merged.chunks
            readers.wait_for_a_round()
            assert lab.collect().errors == 0
            assert lab.compact().errors == 0
            readers.wait_for_a_round()
            more = {f"late.t{n}": shared + noise(90 * KIB, 50 + n) for n in range(4)}
            _put(lab, more)
            merged += reconcile(lab).merged.chunks
        assert readers.wrong == []
        assert merged > 20
        assert {name: (lab.view / name).read_bytes() for name in more} == more
        lab.unmount()
        lab.verify_clean()


def test_a_file_written_to_and_taken_again_keeps_what_was_merged(tmp_path: Path) -> None:
    with mounted_lab(tmp_path) as lab:
        lab.set_policy(PLAIN + "partitions = 2\n")
        shared = noise(600 * KIB, 7)
        _put(lab, {"a.t0": shared, "b.t1": shared})
        assert reconcile(lab).merged.chunks > 0
        expected = {}
        for name in ("a.t0", "b.t1"):
            with open(lab.view / name, "r+b") as file:
                file.seek(300 * KIB)
                file.write(b"written after the merge")
            expected[name] = shared[: 300 * KIB] + b"written after the merge"
            expected[name] += shared[len(expected[name]) :]
        lab.optimize()
        lab.collect()
        lab.compact()
        reconcile(lab)
        lab.compact()
        assert {name: (lab.view / name).read_bytes() for name in expected} == expected
        lab.unmount()
        assert {name: lab.read(name) for name in expected} == expected
        lab.verify_clean()


def _put(lab: MountedLab, contents: dict[str, bytes]) -> None:
    for name, content in contents.items():
        (lab.view / name).write_bytes(content)
    lab.optimize()
    assert all(lab.stub(name) is not None for name in contents)
