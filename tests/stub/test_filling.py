"""Stubs that are filled up a piece at a time, while users write to them."""

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dedupd_core import failpoint
from dedupd_core.errors import NoSpace
from dedupd_core.format.stub import Flag
from dedupd_core.stub import filling
from dedupd_core.stub.filling import StubFill, make_plain
from dedupd_core.system.files import data_ranges
from dedupd_core.units import KIB, MIB
from tests.conftest import MakeFileSystem
from tests.stub.test_stub_file import FILE_SYSTEMS, Sparse
from tests.support.lab import OLD_NS, Lab, lab_in, new_lab, noise

BLOCK = 4096
PIECE = 4 * BLOCK
BLOCKS = 60


def content() -> bytes:
    """Noise, with a hole of the recipe, blocks of zeros within a chunk, and a ragged end."""
    data = bytearray(noise(BLOCKS * BLOCK - 1000, 5))
    data[20 * BLOCK : 31 * BLOCK] = bytes(11 * BLOCK)
    data[40 * BLOCK : 41 * BLOCK] = bytes(BLOCK)
    return bytes(data)


@pytest.fixture
def small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(filling, "PIECE_BYTES", PIECE)
    monkeypatch.setattr(filling, "WINDOW_BYTES", 3 * PIECE)
    monkeypatch.setattr(filling, "SYNC_BYTES", 3 * PIECE)
    monkeypatch.setattr(filling, "_TAKE_BACK_BYTES", 2 * PIECE)


class Filled(Sparse):
    """A stub that is being filled up."""

    def __init__(self, lab: Lab, name: str = "f") -> None:
        super().__init__(lab, name)
        self.room_bytes = 1 << 40
        self.filling = StubFill(
            self.stub, lambda _: self.stub.content, self.volume.stub_files, self.require
        )

    def require(self, need_bytes: int) -> None:
        if need_bytes > self.room_bytes:
            raise NoSpace("the reserve")

    def piece(self) -> None:
        if not self.is_plain and not self.filling.is_complete:
            self.filling.load()
            self.filling.fill()

    def take_back(self) -> None:
        if not self.is_plain:
            while self.filling.take_back():
                pass

    def finish(self) -> None:
        while not self.is_plain and not self.filling.is_complete:
            self.piece()
        if not self.is_plain:
            self.filling.sync()
            self.filling.finish()
            self.is_plain = True


@contextmanager
def filled(lab: Lab, name: str = "f") -> Iterator[Filled]:
    one = Filled(lab, name)
    try:
        yield one
    finally:
        one.close()


def put_stub(lab: Lab, name: str = "f", data: bytes | None = None) -> bytes:
    data = content() if data is None else data
    lab.put(name, data)
    lab.optimize()
    assert lab.stub(name) is not None
    return data


def present_bytes(lab: Lab, name: str = "f") -> int:
    with open(lab.data / name, "rb") as file:
        size = os.fstat(file.fileno()).st_size
        return sum(end - start for start, end in data_ranges(file.fileno(), 0, size))


@st.composite
def acts(draw: st.DrawFn) -> list[tuple[str, int, int]]:
    """(act, offset or size, length), with edges near those of blocks."""
    near = st.builds(
        lambda block, delta: max(0, block * BLOCK + delta),
        st.integers(0, BLOCKS + 4),
        st.one_of(st.just(0), st.integers(-3, 3), st.integers(0, BLOCK)),
    )
    lengths = st.one_of(st.integers(1, 10), st.just(BLOCK), st.integers(1, 5 * BLOCK))
    kinds = ["piece"] * 6 + ["write"] * 4 + ["late write", "truncate", "take back", "new filling"]
    return draw(st.lists(st.tuples(st.sampled_from(kinds), near, lengths), min_size=1, max_size=30))


@pytest.mark.parametrize("kind", FILE_SYSTEMS)
@pytest.mark.usefixtures("small_pieces")
def test_users_see_a_file_whatever_piece_it_is_at(loop_fs: MakeFileSystem, kind: str) -> None:
    lab = new_lab(loop_fs(kind) / "volume", "4k")
    names: list[str] = []

    @settings(max_examples=60)
    @given(acts(), st.booleans())
    def check(steps: list[tuple[str, int, int]], to_the_end: bool) -> None:
        if not names:
            # One run of the job makes stubs for many examples.
            names.extend(f"f{number}" for number in range(50))
            for name in names:
                lab.put(name, content())
            lab.optimize()
        name = names.pop()
        model = bytearray(content())
        with filled(lab, name) as one:
            for number, (act, at, length) in enumerate(steps):
                data = noise(length, number)
                if act == "piece":
                    one.piece()
                elif act == "take back":
                    one.take_back()
                elif act == "new filling" and not one.is_plain:
                    one.filling.stop()
                    one.filling = StubFill(
                        one.stub, lambda _: one.stub.content, one.volume.stub_files, one.require
                    )
                elif act == "truncate":
                    one.truncate(at)
                    model[at:] = bytes(max(0, at - len(model)))
                elif act.endswith("write"):
                    if act == "late write" and not one.is_plain:
                        one.filling.load()
                    assert one.write(at, data) == length
                    model.extend(bytes(max(0, at - len(model))))
                    model[at : at + length] = data
                    if act == "late write" and not one.is_plain:
                        one.filling.fill()
                assert one.read(0, len(model) + 1) == model
            if to_the_end:
                one.finish()
            else:
                one.take_back()
            assert one.read(0, len(model) + 1) == model
        assert lab.read(name) == model
        assert (lab.stub(name) is None) == (to_the_end or one.is_plain)
        (lab.data / name).unlink()

    check()


@pytest.mark.usefixtures("small_pieces")
def test_a_file_is_held_for_one_piece_at_a_time(tmp_path: Path) -> None:
    with lab_in(tmp_path, "4k") as lab:
        data = put_stub(lab)
        with filled(lab) as one:
            sizes = []
            while not one.filling.is_complete:
                before = one.filling.filled_bytes
                one.piece()
                sizes.append(one.filling.filled_bytes - before)
            assert max(sizes) == PIECE
            assert sum(sizes) == len(data) - 12 * BLOCK
            one.finish()
        assert lab.stub("f") is None
        assert (lab.data / "f").read_bytes() == data
        assert present_bytes(lab) < len(data) - 11 * BLOCK  # zeros stay holes


@pytest.mark.usefixtures("small_pieces")
def test_between_pieces_the_file_is_a_stub_at_rest_with_its_times(tmp_path: Path) -> None:
    with lab_in(tmp_path, "4k") as lab:
        data = put_stub(lab)
        before = lab.stub("f")
        assert before is not None
        with filled(lab) as one:
            for _ in range(3):
                one.piece()
                assert lab.stub("f") == replace(before, flags=before.flags | Flag.WRITTEN)
                assert (lab.data / "f").stat().st_mtime_ns == OLD_NS
                assert lab.read("f") == data
            one.write(7, b"new")
            written_ns = (lab.data / "f").stat().st_mtime_ns
            assert written_ns != OLD_NS
            one.piece()
            assert (lab.data / "f").stat().st_mtime_ns == written_ns
            one.take_back()
            assert (lab.data / "f").stat().st_mtime_ns == written_ns


@pytest.mark.usefixtures("small_pieces")
def test_what_is_taken_back_is_what_no_user_wrote(tmp_path: Path) -> None:
    with lab_in(tmp_path, "4k") as lab:
        model = bytearray(put_stub(lab))
        with filled(lab) as one:
            one.write(2 * BLOCK, noise(BLOCK, 1))
            for _ in range(4):
                one.piece()
            one.write(9 * BLOCK + 5, b"user")
            model[2 * BLOCK : 3 * BLOCK] = noise(BLOCK, 1)
            model[9 * BLOCK + 5 : 9 * BLOCK + 9] = b"user"
            one.take_back()
            assert one.read(0, len(model)) == model
        assert lab.read("f") == model
        # What differs from the store is kept in pieces of up to 128 KiB, here of one cell.
        assert present_bytes(lab) <= 2 * PIECE


@pytest.mark.usefixtures("small_pieces")
def test_a_write_into_the_rest_of_a_piece_stays(tmp_path: Path) -> None:
    """The pieces do not begin where the cells do, behind a hole of the recipe."""
    with lab_in(tmp_path, "4k") as lab:
        model = bytearray(put_stub(lab))
        last = BLOCKS - 1
        with filled(lab) as one:
            while one.filling._position < (last - 4) * BLOCK:
                one.piece()
            one.filling.load()
            assert one.filling._loaded_end == last * BLOCK
            one.write(last * BLOCK, b"user")
            model[last * BLOCK : last * BLOCK + 4] = b"user"
            one.filling.fill()
            one.take_back()
            assert one.read(0, len(model)) == model


@pytest.mark.usefixtures("small_pieces")
def test_a_block_that_a_write_left_missing_after_all_is_filled(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its blocks were there when the piece was planned; the write failed, and took them back."""
    with lab_in(tmp_path, "4k") as lab:
        data = put_stub(lab)
        with filled(lab) as one:
            one.write(BLOCK, noise(BLOCK, 1))
            one.filling.stop()
            one.filling = StubFill(
                one.stub, lambda _: one.stub.content, one.volume.stub_files, one.require
            )
            one.filling.load()
            one.volume.disk.punch(one.fd, BLOCK, BLOCK)
            one.filling.fill()
            one.finish()
        assert (lab.data / "f").read_bytes() == data


@pytest.mark.usefixtures("small_pieces")
def test_the_reserve_ends_it_and_the_space_comes_back(tmp_path: Path) -> None:
    with lab_in(tmp_path, "4k") as lab:
        data = put_stub(lab)
        with filled(lab) as one:
            one.piece()
            one.room_bytes = PIECE - 1
            with pytest.raises(NoSpace):
                make_plain(one.filling, lambda: None)
        assert lab.read("f") == data
        assert (lab.data / "f").stat().st_blocks == 0
        assert (lab.data / "f").stat().st_mtime_ns == OLD_NS


@pytest.mark.parametrize(
    ("point", "passes"),
    [
        ("stub.restoring", 1),
        ("stub.restoring", 4),
        ("stub.piece-filled", 1),
        ("stub.piece-filled", 2),
        ("stub.piece-filled", 7),
        ("stub.filled", 1),
    ],
)
@pytest.mark.usefixtures("small_pieces")
def test_a_death_between_any_two_pieces_leaves_a_right_stub(
    tmp_path: Path, point: str, passes: int
) -> None:
    with lab_in(tmp_path, "4k") as lab:
        data = put_stub(lab)
        die_at(point, passes, lambda: finish(lab))
        stub = lab.stub("f")
        assert stub is not None
        assert bool(stub.flags & Flag.RESTORING) == (point == "stub.restoring")
        assert 0 <= present_bytes(lab) < len(data)
        assert (present_bytes(lab) > 0) == ((point, passes) != ("stub.restoring", 1))
        assert lab.read("f") == data
        assert lab.unoptimize().files_restored == 1
        assert (lab.data / "f").read_bytes() == data
        assert (lab.data / "f").stat().st_mtime_ns == OLD_NS


def finish(lab: Lab) -> None:
    with filled(lab) as one:
        one.finish()


def die_at(point: str, passes: int, action: Callable[[], None]) -> None:
    """Run ``action`` in a process that ends, with nothing cleaned up, at the n-th pass."""
    child = os.fork()
    if child == 0:
        left = passes

        def hook(name: str) -> None:
            nonlocal left
            left -= name == point
            if left == 0:
                os._exit(77)

        failpoint.hook = hook
        try:
            action()
        finally:
            os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 77


def test_a_large_file_of_many_extents_is_filled_and_taken_back(tmp_path: Path) -> None:
    with lab_in(tmp_path) as lab:
        model = bytearray(put_stub(lab, data=noise(9 * MIB + 77)))
        with filled(lab) as one:
            for at in range(0, 4 * MIB, 64 * KIB):
                one.write(at, b"user")
                model[at : at + 4] = b"user"
            while not one.filling.is_complete:
                one.piece()
            assert one.read(0, len(model)) == model
            one.take_back()
        assert lab.read("f") == model
        assert present_bytes(lab) < 5 * MIB
        assert lab.unoptimize().messages == []
        assert (lab.data / "f").read_bytes() == model
