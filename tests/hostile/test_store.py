"""Damage to the store is reported and never read as data, wherever it is."""

import os
import random
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dedupd_core.errors import Damaged
from dedupd_core.format.stub import Flag, StubAttribute, encode_stub
from dedupd_core.format.table import HEADER_BYTES as TABLE_HEADER_BYTES
from dedupd_core.system.disk import Disk
from dedupd_core.volume.enabling.enable import enable
from dedupd_core.volume.volume import Volume
from tests.support import crash

pytestmark = pytest.mark.root

KIB = 1 << 10


@pytest.fixture(scope="module")
def fast(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    with (
        crash.tmpfs(tmp_path_factory.mktemp("hostile")) as memory,
        crash.ext4(memory, size_mb=128, mkfs=("-b", "4096")) as point,
    ):
        yield point


def small_volume(root: Path, seed: int = 1) -> dict[str, bytes]:
    """An optimized volume whose store has a few kilobytes; returns its files."""
    rng = random.Random(seed)
    root.mkdir()
    shared = rng.randbytes(5000)
    files = {
        "one": shared + rng.randbytes(900),
        "two": shared + b"text " * 700,
        "direct": rng.randbytes(1500),
    }
    for name, content in files.items():
        (root / name).write_bytes(content)
    enable(
        str(root),
        chunk_size="4k",
        fingerprint="blake3",
        policy_values={"min_age": "0s", "min_size": "1k", "min_file_saving": 0},
        force=True,
        disk=Disk(),
    )
    assert crash.optimize_volume(root).files_optimized == len(files)
    return files


@pytest.fixture
def volume(fast: Path) -> Iterator[tuple[Path, dict[str, bytes]]]:
    root = fast / "root"
    yield root, small_volume(root)
    crash.remove(root)


@pytest.fixture
def other(fast: Path) -> Iterator[tuple[Path, dict[str, bytes]]]:
    """Another volume, with files of the same names and other content."""
    root = fast / "other"
    yield root, small_volume(root, seed=2)
    crash.remove(root)


def read_all(root: Path, names: list[str]) -> dict[str, bytes | None]:
    """What each file reads as; None where damage is reported."""
    found: dict[str, bytes | None] = {}
    with Volume.open(str(root)) as opened:
        for name in names:
            try:
                found[name] = crash.read_through_store(opened, os.fsencode(name))
            except Damaged as error:
                assert str(error)
                found[name] = None
    return found


def wrong(found: dict[str, bytes | None], files: dict[str, bytes]) -> list[str]:
    """Files that read as something that they never were."""
    return [name for name, content in found.items() if content not in (None, files[name])]


def store_file(root: Path, name: str) -> Path:
    return root / ".dedupd/store" / name


CONTAINERS = ["chunks/00000001.dat", "recipes/00000001.dat"]
TABLES = ["chunks/00000001.dir", "recipes/00000001.dir"]


def flipped(path: Path, stride: int) -> Iterator[int]:
    """Flip one bit of every so-manieth byte of a file in turn; yields where."""
    whole = path.read_bytes()
    rng = random.Random(1)
    with open(path, "r+b", buffering=0) as file:
        for at in range(rng.randrange(stride), len(whole), stride):
            file.seek(at)
            file.write(bytes([whole[at] ^ 1 << rng.randrange(8)]))
            yield at
            file.seek(at)
            file.write(whole[at : at + 1])


def check_container_flips(volume: tuple[Path, dict[str, bytes]], name: str, stride: int) -> None:
    root, files = volume
    silent = []
    for at in flipped(store_file(root, name), stride):
        found = read_all(root, list(files))
        assert wrong(found, files) == [], f"{name}: bit flipped in byte {at}"
        if None not in found.values():
            silent.append(at)
        findings = crash.verify_volume(root).findings
        assert findings or at in silent, f"{name}: byte {at} is not found by verify"
        if not findings:
            # Only the padding between records is not covered by a checksum.
            assert is_padding(store_file(root, name), at), f"{name}: byte {at} is not found"
    assert read_all(root, list(files)) == files


def is_padding(path: Path, at: int) -> bool:
    """Whether a byte of a container lies behind a record's payload and before the next record."""
    from dedupd_core.format import container as fmt
    from dedupd_core.store.container.scan import ScannedRecord, scan
    from dedupd_core.system.files import opened

    with opened(os.open(path, os.O_RDONLY)) as fd:
        header = fmt.decode_file_header(os.pread(fd, fmt.FILE_HEADER_BYTES, 0), "")
        seed = fmt.seed_of(header)
        for item in scan(fd, seed, fmt.FILE_HEADER_BYTES, path.stat().st_size):
            assert isinstance(item, ScannedRecord)
            end = item.offset + fmt.RECORD_HEADER_BYTES + item.record.stored_length
            if end <= at < item.offset + fmt.record_size(item.record.stored_length):
                return True
    return False


@pytest.mark.parametrize("name", CONTAINERS)
def test_a_flipped_bit_in_a_container_is_never_data(
    volume: tuple[Path, dict[str, bytes]], name: str
) -> None:
    check_container_flips(volume, name, stride=29)


@pytest.mark.slow
@pytest.mark.parametrize("name", CONTAINERS)
def test_a_flipped_bit_in_any_byte_of_a_container_is_never_data(
    volume: tuple[Path, dict[str, bytes]], name: str
) -> None:
    check_container_flips(volume, name, stride=1)


@pytest.mark.parametrize("name", TABLES)
def test_a_flipped_bit_in_a_table_changes_nothing_but_is_found(
    volume: tuple[Path, dict[str, bytes]], name: str
) -> None:
    root, files = volume
    for at in flipped(store_file(root, name), stride=5):
        assert read_all(root, list(files)) == files, f"{name}: bit flipped in byte {at}"
        findings = crash.verify_volume(root).findings
        # The hint and the states of merged chunks are for jobs; the checksum covers them as well.
        assert [f.invariant for f in findings][:1] == ["table-agrees"], f"{name}: byte {at}"


def optimize_more(root: Path) -> None:
    """A job with something to write; one without leaves the store alone."""
    (root / ".dedupd/data/more").write_bytes(b"more" * 20_000)
    assert crash.optimize_volume(root).files_optimized == 1


@pytest.mark.parametrize("name", TABLES)
def test_the_next_job_repairs_a_damaged_table(
    volume: tuple[Path, dict[str, bytes]], name: str
) -> None:
    root, files = volume
    table = bytearray(store_file(root, name).read_bytes())
    table[TABLE_HEADER_BYTES + 40] ^= 4
    store_file(root, name).write_bytes(table)
    optimize_more(root)
    assert crash.verify_volume(root).findings == []
    assert read_all(root, list(files)) == files


def test_a_flipped_bit_in_the_attribute_is_reported_with_the_files_name(
    volume: tuple[Path, dict[str, bytes]],
) -> None:
    root, files = volume
    path = root / ".dedupd/data/one"
    whole = os.getxattr(path, "trusted.dedupd")
    for bit in range(len(whole) * 8):
        value = bytearray(whole)
        value[bit // 8] ^= 1 << bit % 8
        os.setxattr(path, "trusted.dedupd", bytes(value))
        assert read_all(root, list(files)) == files | {"one": None}
    findings = crash.verify_volume(root).findings
    assert [(f.invariant, f.where) for f in findings] == [("stub-attribute", "one")]


def cut_to(share: float) -> Callable[[Path], None]:
    """Keep the first part of a file."""
    return lambda path: os.truncate(path, int(path.stat().st_size * share))


def cut_last_bytes(count: int) -> Callable[[Path], None]:
    return lambda path: os.truncate(path, path.stat().st_size - count)


def zero(start: float, end: float) -> Callable[[Path], None]:
    """Zero a part of a file, given in shares of its length."""

    def damage(path: Path) -> None:
        whole = path.read_bytes()
        first, last = int(len(whole) * start), int(len(whole) * end)
        path.write_bytes(whole[:first] + bytes(last - first) + whole[last:])

    return damage


def garbage(path: Path) -> None:
    path.write_bytes(random.Random(5).randbytes(path.stat().st_size))


DAMAGES: dict[str, Callable[[Path], None]] = {
    "missing": Path.unlink,
    "empty": cut_to(0),
    "cut in the header": lambda path: os.truncate(path, 60),
    "cut after the header": lambda path: os.truncate(path, 128),
    "cut in the middle": cut_to(0.6),
    "last bytes lost": cut_last_bytes(9),
    "all zeros": zero(0, 1),
    "front zeroed": zero(0, 0.2),
    "middle zeroed": zero(0.4, 0.7),
    "tail zeroed": zero(0.7, 1),
    "garbage": garbage,
}


@pytest.mark.parametrize("damage", DAMAGES)
@pytest.mark.parametrize("name", CONTAINERS)
def test_a_damaged_container_is_never_data_also_after_more_was_stored(
    volume: tuple[Path, dict[str, bytes]], name: str, damage: str
) -> None:
    root, files = volume
    DAMAGES[damage](store_file(root, name))
    assert wrong(read_all(root, list(files)), files) == []
    assert crash.verify_volume(root).findings

    # Goes on storing, without giving the lost ids a new meaning.
    for number in range(3):
        name_of_more = f"more{number}"
        files[name_of_more] = random.Random(number + 10).randbytes(6000)
        (root / ".dedupd/data" / name_of_more).write_bytes(files[name_of_more])
    report = crash.optimize_volume(root)
    assert report.files_optimized == 3
    found = read_all(root, list(files))
    assert wrong(found, files) == []
    assert [found[f"more{n}"] for n in range(3)] == [files[f"more{n}"] for n in range(3)]


@pytest.mark.parametrize("damage", DAMAGES)
@pytest.mark.parametrize("name", TABLES)
def test_a_damaged_table_costs_nothing(
    volume: tuple[Path, dict[str, bytes]], name: str, damage: str
) -> None:
    root, files = volume
    DAMAGES[damage](store_file(root, name))
    assert read_all(root, list(files)) == files
    optimize_more(root)
    assert crash.verify_volume(root).findings == []
    assert read_all(root, list(files)) == files


def test_all_tables_and_the_catalogue_may_be_lost_at_once(
    volume: tuple[Path, dict[str, bytes]],
) -> None:
    root, files = volume
    for name in TABLES:
        store_file(root, name).unlink()
    shutil.rmtree(root / ".dedupd/catalog")
    assert read_all(root, list(files)) == files
    (root / ".dedupd/data/more").write_bytes(b"more" * 20_000)
    again = crash.run_cli("run", "optimize", root)
    assert again.returncode == 0, again.stderr
    assert crash.verify_volume(root).findings == []


@pytest.mark.parametrize("content", [b"", b"\0" * 8192, b"garbage" * 2000])
def test_a_damaged_catalogue_is_made_again(
    volume: tuple[Path, dict[str, bytes]], content: bytes
) -> None:
    root, _ = volume
    assert crash.run_cli("run", "optimize", root).returncode == 0
    (root / ".dedupd/catalog/data.mdb").write_bytes(content)
    again = crash.run_cli("run", "optimize", root)
    assert again.returncode == 0, again.stderr


def test_lost_ids_never_name_other_bytes(volume: tuple[Path, dict[str, bytes]]) -> None:
    """The last container is lost whole; what is stored next gets its number, ordinals, lengths."""
    root, files = volume
    for name in ("chunks/00000001.dat", "chunks/00000001.dir"):
        store_file(root, name).unlink()
    data = root / ".dedupd/data"
    twins = {f"twin-{name}": content[:-1] + b"!" for name, content in files.items()}
    # In the order in which the first ones were read, so that the ordinals are the same.
    for name, content in twins.items():
        (data / name).write_bytes(content)
        crash.optimize_volume(root)
    found = read_all(root, list(files | twins))
    assert wrong(found, files | twins) == []
    assert {name: found[name] for name in twins} == twins
    hit = {f.where for f in crash.verify_volume(root).findings}
    assert {name for name in files if found[name] is None} <= hit


def test_containers_of_another_volume_are_never_data(
    volume: tuple[Path, dict[str, bytes]], other: tuple[Path, dict[str, bytes]]
) -> None:
    root, files = volume
    for name in [*CONTAINERS, *TABLES]:
        shutil.copyfile(store_file(other[0], name), store_file(root, name))
    assert set(read_all(root, list(files)).values()) == {None}
    assert {f.invariant for f in crash.verify_volume(root).findings} >= {"container-header"}


def test_a_stub_of_another_volume_is_named_and_never_data(
    volume: tuple[Path, dict[str, bytes]], other: tuple[Path, dict[str, bytes]]
) -> None:
    root, files = volume
    strange = root / ".dedupd/data/strange"
    with open(strange, "wb") as file:
        file.truncate(len(other[1]["one"]))
    os.setxattr(
        strange,
        "trusted.dedupd",
        os.getxattr(other[0] / ".dedupd/data/one", "trusted.dedupd"),
    )
    assert read_all(root, [*files, "strange"]) == files | {"strange": None}
    report = crash.optimize_volume(root)
    assert report.errors == 1
    assert "strange" in report.messages[0]
    assert "another volume" in report.messages[0]


ids = st.one_of(
    st.integers(0, 2**64 - 1),
    st.builds(lambda c, o: c << 32 | o, st.integers(0, 2), st.integers(0, 9)),
)


def test_a_stub_that_names_anything_at_all_reads_as_itself_or_not_at_all(
    volume: tuple[Path, dict[str, bytes]],
) -> None:
    """Whatever a well-formed attribute says, the answer is data of the store or damage."""
    root, files = volume
    path = root / ".dedupd/data/one"
    whole = os.getxattr(path, "trusted.dedupd")
    with Volume.open(str(root)) as opened:
        fd = os.open(path, os.O_RDONLY)
        stub = opened.space.read(fd, "one")
        uuid, bound = opened.space.volume_id, opened.space.binding_of(fd)
        os.close(fd)
    assert stub is not None

    @given(
        recipe=ids | st.just(stub.recipe),
        digest=st.binary(min_size=16, max_size=16) | st.just(stub.digest),
        covered=st.integers(0, 2**63) | st.just(stub.covered),
        flags=st.sampled_from([Flag(0), Flag.DIRECT]),
    )
    def check(recipe: int, digest: bytes, covered: int, flags: Flag) -> None:
        value = encode_stub(StubAttribute(recipe, digest, covered, 0, flags), uuid, bound)
        os.setxattr(path, "trusted.dedupd", value)
        found = read_all(root, ["one"])["one"]
        if found is not None and (recipe, digest) != (stub.recipe, stub.digest):
            assert covered == 0 or min(covered, len(found)) == 0
        elif found is not None:
            end = min(covered, len(found))
            assert found == files["one"][:end].ljust(len(found), b"\0")

    check()
    os.setxattr(path, "trusted.dedupd", whole)
    assert read_all(root, ["one"])["one"] == files["one"]
