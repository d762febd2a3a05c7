"""Whatever users and jobs do, and however often the mount dies: files are what a model says.

Each step is something that a user or an administrator does to a mounted volume on a real file
system. After every step that could tell, the mount is compared with a model in memory.
"""

import itertools
import mmap
import os
import random
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, seed, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    Bundle,
    MultipleResults,
    RuleBasedStateMachine,
    consumes,
    initialize,
    invariant,
    multiple,
    precondition,
    rule,
    run_state_machine_as_test,
)

from dedupd_core.volume.enabling.enable import enable
from tests.conftest import MakeFileSystem
from tests.support.lab import noise
from tests.support.mounts import MountedLab, Nursery, serve_beside

pytestmark = pytest.mark.root

BLOCK = 4096
STEPS = 40

offsets = st.builds(
    lambda block, delta: max(0, block * BLOCK + delta),
    st.integers(0, 40),
    st.one_of(st.just(0), st.integers(-2, 2), st.integers(0, BLOCK)),
)
lengths = st.one_of(
    st.integers(1, 10), st.just(BLOCK), st.integers(1, 3 * BLOCK), st.integers(1, 50 * BLOCK)
)
names = st.sampled_from([f"f{number}" for number in range(6)])
seeds = st.integers(0, 1 << 30)


class Content:
    """The bytes of one inode, whatever its names."""

    def __init__(self, data: bytes) -> None:
        self.data = bytearray(data)

    def write(self, offset: int, data: bytes) -> None:
        self.data.extend(bytes(max(0, offset - len(self.data))))
        self.data[offset : offset + len(data)] = data

    def truncate(self, size: int) -> None:
        del self.data[size:]
        self.data.extend(bytes(size - len(self.data)))


class Handle:
    """A descriptor that a user holds."""

    def __init__(self, fd: int, content: Content) -> None:
        self.fd = fd
        self.content = content


def some_bytes(seed: int, length: int) -> bytes:
    """Noise, at times zeros, and at times what other files also hold."""
    if seed % 5 == 0:
        return bytes(length)
    return noise(length, seed % 7 if seed % 3 else seed)


class MountMachine(RuleBasedStateMachine):
    """``lab`` is shared by all runs; each has a directory of its own."""

    lab: MountedLab
    runs = 0
    steps = 0
    handles: Bundle[Handle] = Bundle("handles")

    def __init__(self) -> None:
        super().__init__()
        type(self).runs += 1
        self.files: dict[str, Content] = {}
        self.open: list[Handle] = []
        self.directory = f"run{self.runs}"

    @invariant()
    def count(self) -> None:
        type(self).steps += 1

    @property
    def here(self) -> Path:
        return self.lab.view / self.directory

    @initialize()
    def begin(self) -> None:
        if not self.lab.pid:
            self.lab.mount()
        self.here.mkdir()

    def teardown(self) -> None:
        if not self.lab.pid:
            self.lab.mount()
        if self.here.exists():
            self.compare_all()
        for handle in self.open:
            os.close(handle.fd)

    def existing(self, name: str) -> str | None:
        """One of the files there are."""
        if name in self.files or not self.files:
            return name if self.files else None
        return sorted(self.files)[len(name + name[-1]) % len(self.files)]

    def compare(self, name: str) -> None:
        content = self.files[name]
        path = self.here / name
        assert path.stat().st_size == len(content.data)
        assert path.read_bytes() == content.data

    def compare_all(self) -> None:
        assert sorted(os.listdir(self.here)) == sorted(self.files)
        for name in self.files:
            self.compare(name)
        for handle in self.open:
            assert os.fstat(handle.fd).st_size == len(handle.content.data)
            assert os.pread(handle.fd, len(handle.content.data) + 1, 0) == handle.content.data

    # --- users --------------------------------------------------------------------------------

    @rule(name=names, seed=seeds, length=lengths)
    def create(self, name: str, seed: int, length: int) -> None:
        data = some_bytes(seed, length)
        (self.here / name).write_bytes(data)
        if name in self.files:
            self.files[name].truncate(0)
            self.files[name].write(0, data)
        else:
            self.files[name] = Content(data)

    @rule(name=names, offset=offsets, length=lengths, seed=seeds, sync=st.booleans())
    def write(self, name: str, offset: int, length: int, seed: int, sync: bool) -> None:
        if not (found := self.existing(name)):
            return
        data = some_bytes(seed, length)
        with open(self.here / found, "r+b", buffering=0) as file:
            assert os.pwrite(file.fileno(), data, offset) == length
            if sync:
                os.fdatasync(file.fileno())
        self.files[found].write(offset, data)

    @rule(name=names, length=lengths, seed=seeds)
    def append(self, name: str, length: int, seed: int) -> None:
        if not (found := self.existing(name)):
            return
        data = some_bytes(seed, length)
        with open(self.here / found, "ab", buffering=0) as file:
            file.write(data)
        self.files[found].data += data

    @rule(name=names, size=offsets)
    def truncate(self, name: str, size: int) -> None:
        if not (found := self.existing(name)):
            return
        os.truncate(self.here / found, size)
        self.files[found].truncate(size)

    @rule(name=names, offset=offsets, length=lengths, seed=seeds)
    def write_through_a_mapping(self, name: str, offset: int, length: int, seed: int) -> None:
        if not (found := self.existing(name)):
            return
        content = self.files[found]
        length = min(length, len(content.data) - offset)
        if length <= 0:
            return
        data = some_bytes(seed, length)
        with (
            open(self.here / found, "r+b") as file,
            mmap.mmap(file.fileno(), len(content.data)) as mapping,
        ):
            mapping[offset : offset + length] = data
        content.write(offset, data)

    @rule(name=names, offset=offsets, length=lengths)
    def read(self, name: str, offset: int, length: int) -> None:
        if not (found := self.existing(name)):
            return
        with open(self.here / found, "rb", buffering=0) as file:
            expected = self.files[found].data[offset : offset + length]
            assert os.pread(file.fileno(), length, offset) == expected

    @rule(name=names, new=names)
    def rename(self, name: str, new: str) -> None:
        if not (found := self.existing(name)):
            return
        os.rename(self.here / found, self.here / new)
        if self.files.get(new) is not self.files[found]:
            # Renaming a name onto another of the same file does nothing.
            self.files[new] = self.files.pop(found)

    @rule(name=names, new=names)
    def link(self, name: str, new: str) -> None:
        if not (found := self.existing(name)) or new in self.files:
            return
        os.link(self.here / found, self.here / new)
        self.files[new] = self.files[found]

    @rule(name=names)
    def unlink(self, name: str) -> None:
        if not (found := self.existing(name)):
            return
        (self.here / found).unlink()
        del self.files[found]

    @rule(name=names)
    def save_by_rename(self, name: str) -> None:
        if not (found := self.existing(name)):
            return
        data = bytes(self.files[found].data[::-1])
        (self.here / "new").write_bytes(data)
        os.replace(self.here / "new", self.here / found)
        self.files[found] = Content(data)

    # --- handles ------------------------------------------------------------------------------

    @rule(target=handles, name=names, write=st.booleans())
    def hold_open(self, name: str, write: bool) -> MultipleResults[Handle] | Handle:
        found = self.existing(name)
        if not found or len(self.open) > 4:
            return multiple()
        fd = os.open(self.here / found, os.O_RDWR if write else os.O_RDONLY)
        handle = Handle(fd, self.files[found])
        self.open.append(handle)
        return handle

    @rule(handle=handles, offset=offsets, length=lengths, seed=seeds)
    def use_handle(self, handle: Handle, offset: int, length: int, seed: int) -> None:
        if handle not in self.open:
            return
        if seed % 2 and os.get_blocking(handle.fd) and writable(handle.fd):
            data = some_bytes(seed, length)
            assert os.pwrite(handle.fd, data, offset) == length
            handle.content.write(offset, data)
        expected = handle.content.data[offset : offset + length]
        assert os.pread(handle.fd, length, offset) == expected

    @rule(handle=consumes(handles))
    def close(self, handle: Handle) -> None:
        if handle in self.open:
            self.open.remove(handle)
            os.close(handle.fd)

    # --- administrators and fate --------------------------------------------------------------

    @rule()
    def optimize(self) -> None:
        report = self.lab.optimize()
        assert report.errors == 0, report.messages

    @rule(name=names)
    def unoptimize(self, name: str) -> None:
        if not (found := self.existing(name)):
            return
        report = self.lab.unoptimize(os.fsencode(f"{self.directory}/{found}"))
        assert report.errors == 0, report.messages
        assert self.lab.stub(f"{self.directory}/{found}") is None
        self.compare(found)

    @rule()
    def remount_after_a_death(self) -> None:
        self.lab.kill()
        self.let_go()
        self.lab.mount()
        self.compare_all()

    @precondition(lambda self: not self.open)
    @rule()
    def remount(self) -> None:
        self.lab.unmount()
        self.lab.mount()
        self.compare_all()

    def let_go(self) -> None:
        """The descriptors of a mount that has died are of no use."""
        for handle in self.open:
            os.close(handle.fd)
        self.open.clear()

    @rule()
    def look_at_everything(self) -> None:
        self.compare_all()


def writable(fd: int) -> bool:
    with open(f"/proc/self/fdinfo/{fd}") as file:
        flags = next(line.split()[1] for line in file if line.startswith("flags:"))
    return int(flags, 8) & os.O_ACCMODE == os.O_RDWR


@pytest.fixture(params=["ext4", "xfs", "btrfs"])
def lab(loop_fs: MakeFileSystem, request: pytest.FixtureRequest) -> Iterator[MountedLab]:
    point = loop_fs(request.param, "4G", in_memory=True)
    root, view = point / "volume", point.parent / "view"
    root.mkdir()
    view.mkdir()
    values: dict[str, str | int] = {"min_age": "0s", "min_size": "1", "min_file_saving": 0}
    # On one of them threads answer beside the loop's all the time.
    lab = MountedLab(root, view, Nursery(serve_beside if request.param == "ext4" else None))
    enable(
        str(root),
        chunk_size="4k",
        fingerprint="blake3",
        policy_values=values,
        force=True,
        disk=lab.disk,
    )
    lab.mount()
    yield lab
    if lab.pid:
        lab.unmount()
    lab.verify_clean()


def run(lab: MountedLab, steps: int) -> None:
    """Take at least ``steps`` steps; ``pytest -s`` shows how many there were."""
    began = time.monotonic()
    first = random.getrandbits(32)
    print(f"seed {first}")
    machine: type[MountMachine] = type("Machine", (MountMachine,), {"lab": lab})
    for number in itertools.count(first):
        run_state_machine_as_test(
            seed(number)(machine),
            settings=settings(
                max_examples=max(5, (steps - machine.steps) // STEPS),
                stateful_step_count=STEPS,
                deadline=None,
                database=None,
                suppress_health_check=list(HealthCheck),
            ),
        )
        if machine.steps >= steps:
            break
    seconds = time.monotonic() - began
    print(f"{machine.steps} steps in {machine.runs} runs, seed {first}, {seconds:.0f} s")


def test_the_mount_is_what_the_model_says(lab: MountedLab) -> None:
    run(lab, 300)


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_the_mount_is_what_the_model_says_for_ten_thousand_steps(lab: MountedLab) -> None:
    run(lab, 10_000)
