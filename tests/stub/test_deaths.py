"""Changes of a stub that end between any two of their effects, compared with a plain file."""

from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from dedupd_core.stub.filling import StubFill
from dedupd_core.system.disk import Disk
from tests.conftest import MakeFileSystem
from tests.stub.test_stub_file import (
    BLOCK,
    FILE_SYSTEMS,
    SIZE,
    Sparse,
    content,
    operations,
    sparse,
)
from tests.support.lab import Lab, new_lab, noise

pytestmark = pytest.mark.root


EACH_EFFECT = [
    ("write", 10, 100),
    ("expand", 0, 0),
    ("punch", 0, 4 * BLOCK),
    ("truncate", 5 * BLOCK + 100, 0),
]
"""Changes that have every effect, whatever the other examples are."""


class Death(BaseException):
    """The process ends here."""


class MortalDisk(Disk):
    """A disk of a process that ends after some effects."""

    def __init__(self) -> None:
        self.effects_left = 1 << 30
        self.passed: set[str] = set()

    def _native_step(self, name: str, *arguments: Any) -> int:
        if self.effects_left == 0:
            raise Death
        self.effects_left -= 1
        self.passed.add(name)
        return super()._native_step(name, *arguments)


def change(one: Sparse, kind: str, offset: int, length: int, data: bytes) -> None:
    if kind == "write":
        one.write(offset, data)
    elif kind == "truncate":
        one.truncate(offset)
    elif kind in ("expand", "reopen"):
        expand(one)
    else:
        one.change_range(kind, offset, offset + length)


def expand(one: Sparse) -> None:
    """Fill a piece from the store, and free it again."""
    if not one.is_plain:
        load = lambda _: one.stub.content  # noqa: E731
        filling = StubFill(one.stub, load, one.volume.stub_files, lambda _: None)
        if not filling.is_complete:
            filling.load()
            filling.fill()
            filling.take_back()
        filling.stop()


def changed(model: bytes, kind: str, offset: int, length: int, data: bytes) -> bytes:
    """What the same change makes of a plain file."""
    if kind == "write":
        return model[:offset].ljust(offset, b"\0") + data + model[offset + length :]
    if kind == "truncate":
        return model[:offset].ljust(offset, b"\0")
    if kind == "allocate":
        return model.ljust(offset + length, b"\0")
    if kind == "punch":
        return (model[:offset] + bytes(length) + model[offset + length :])[: len(model)]
    return model


def require_before_or_after(found: bytes, before: bytes, after: bytes) -> None:
    """A plain file that is changed in the same way shows no other bytes meanwhile."""
    assert len(found) in (len(before), len(after))
    size = max(len(before), len(after))
    before, after = before.ljust(size, b"\0"), after.ljust(size, b"\0")
    for at in range(0, len(found), BLOCK):
        block = slice(at, min(at + BLOCK, len(found)))
        if found[block] not in (before[block], after[block]):
            pairs = zip(found[block], before[block], after[block], strict=True)
            assert all(byte in (old, new) for byte, old, new in pairs), f"block at {at}"


@pytest.mark.parametrize("kind", FILE_SYSTEMS)
def test_a_change_that_a_death_ends_leaves_what_was_there_or_what_was_asked_for(
    loop_fs: MakeFileSystem, kind: str
) -> None:
    lab = new_lab(loop_fs(kind) / "volume", "4k")
    next_name = names_of(lab)
    passed: set[str] = set()

    @settings(max_examples=20)
    @given(operations(), st.lists(st.integers(0, 6), max_size=6))
    @example(EACH_EFFECT, [])
    def check(steps: list[tuple[str, int, int]], deaths: list[int]) -> None:
        name, model, disk = next_name(), content(), MortalDisk()
        left = [*steps]
        while left:
            with sparse(lab, name, disk) as one, suppress(Death):
                while left:
                    (step, offset, length), number = left.pop(0), len(left)
                    data = noise(length, number)
                    after = changed(model, step, offset, length, data)
                    disk.effects_left = deaths.pop() if deaths else 1 << 30
                    change(one, step, offset, length, data)
                    model = after
                    assert one.read(0, len(model) + 1) == model
            disk.effects_left = 1 << 30
            found = lab.read(name)
            require_before_or_after(found, model, after)
            if lab.stub(name) is None:
                break
            model = found
        (lab.data / name).unlink()
        passed.update(disk.passed)

    check()
    assert passed >= {"write_some", "set_attribute", "truncate", "punch", "reach", "set_times"}


CHANGES = [
    ("write", 5 * BLOCK + 10, 3 * BLOCK),
    ("write", SIZE - 1000, BLOCK),
    ("write", SIZE + 3 * BLOCK, 10),
    ("truncate", SIZE + 2 * BLOCK, 0),
    ("truncate", 7 * BLOCK + 7, 0),
    ("punch", 5 * BLOCK + 10, 9 * BLOCK),
    ("punch", 30 * BLOCK, 20 * BLOCK),
    ("allocate", 38 * BLOCK, 6 * BLOCK),
    ("expand", 0, 0),
]


@pytest.mark.parametrize("kind", FILE_SYSTEMS)
def test_each_change_may_end_at_each_of_its_effects(loop_fs: MakeFileSystem, kind: str) -> None:
    lab = new_lab(loop_fs(kind) / "volume", "4k")
    next_name, data = names_of(lab), noise(3 * BLOCK, 7)
    for step, offset, length in CHANGES:
        after = changed(content(), step, offset, length, data[:length])
        for effects in range(0, 200, 7 if step == "expand" else 1):
            name, disk = next_name(), MortalDisk()
            is_done = False
            with sparse(lab, name, disk) as one, suppress(Death):
                disk.effects_left = effects
                change(one, step, offset, length, data[:length])
                is_done = True
            require_before_or_after(lab.read(name), content(), after)
            if is_done:
                break
        assert is_done and effects > 0


def names_of(lab: Lab) -> Callable[[], str]:
    """Names of stubs of the content, which one run of the job makes for many examples."""
    names: list[str] = []

    def next_name() -> str:
        if not names:
            names.extend(f"f{number}" for number in range(40))
            for name in names:
                lab.put(name, content())
            lab.optimize()
        return names.pop()

    return next_name
