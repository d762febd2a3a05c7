"""What a job takes follows the policy's ``memory``, and not the size of the volume."""

import json
from array import array
from pathlib import Path

import pytest

from dedupd_core import native
from dedupd_core.format import container as fmt
from dedupd_core.format import table as tbl
from dedupd_core.format.container import Kind
from dedupd_core.units import MIB
from tests.support.lab import Lab, new_lab, noise, run_program

PLAIN = 'min_age = "0s"\nmin_size = "1"\n'
CONTAINER_CHUNKS = 1 << 14
RSS_SLACK_BYTES = 6 * MIB
"""What libraries and the allocator take more or less of on another machine."""


def peak_bytes(lab: Lab, job: str, *options: str) -> tuple[int, dict[str, object]]:
    """The peak memory of a job in a process of its own, and its report."""
    result = run_program("run", job, lab.root, "--json", *options)
    assert result.returncode == 0, result.stderr
    report = json.loads(result.stdout)
    return report["resources"]["memory_bytes_peak"], report


def fill_tables(lab: Lab, chunks: int, partition: int) -> None:
    """Containers of a volume, as far as tables tell: chunks that nothing refers to.

    There is nothing in the containers themselves, which no job looks into that has no need to.
    """
    with lab.opened() as volume:
        uuid, directory = volume.space.volume_id, Path(volume.directory(Kind.CHUNKS))
    ones = array("I", [1]) * CONTAINER_CHUNKS
    encoded = native.codec.encode(
        bytes(CONTAINER_CHUNKS), array("I", range(CONTAINER_CHUNKS)), ones, level=0,
        saving_min=0.05, header_bytes=fmt.RECORD_HEADER_BYTES, align_bytes=fmt.ALIGN_BYTES,
    )  # fmt: skip
    last = max((int(path.stem) for path in directory.glob("*.dat")), default=0)
    for number in range(last + 1, last + 1 + chunks // CONTAINER_CHUNKS):
        data = array("Q", range(number << 32, (number << 32) + CONTAINER_CHUNKS)).tobytes()
        packed = native.hashing.fingerprints(data, array("I", range(8, len(data) + 1, 8)))
        header = fmt.FileHeader(Kind.CHUNKS, number, 1, partition, uuid, 1)
        seed = fmt.seed_of(header)
        entries = native.store.seal(encoded, packed, ones, ones, seed=seed, ordinal=0, offset=0)
        size = fmt.FILE_HEADER_BYTES
        mark = tbl.TableHeader.of(header, size, CONTAINER_CHUNKS)
        (directory / f"{number:08d}.dat").write_bytes(fmt.encode_file_header(header))
        (directory / f"{number:08d}.dir").write_bytes(tbl.encode_header(mark) + entries)


def put_some(lab: Lab, mib: int) -> None:
    for n in range(mib // 10):
        lab.put(f"f{n}.t{n % 4}", noise(10 * MIB, n))


@pytest.mark.parametrize("budget_mib", [64, 128])
def test_an_optimize_run_stays_inside_its_budget(tmp_path: Path, budget_mib: int) -> None:
    lab = new_lab(tmp_path / "volume")
    lab.set_policy(PLAIN + f'memory = "{budget_mib} MiB"\npartitions = 3\n')
    put_some(lab, 80)
    peak, _ = peak_bytes(lab, "optimize")
    assert peak <= budget_mib * MIB + RSS_SLACK_BYTES, peak
    lab.verify_clean()


@pytest.mark.slow
def test_a_store_larger_than_the_budget_takes_no_more(tmp_path: Path) -> None:
    """2.5 million chunks are too many for one partition, and for one round."""
    peaks = {}
    for chunks in (300_000, 2_500_000):
        lab = new_lab(tmp_path / f"volume{chunks}")
        lab.set_policy(PLAIN + 'memory = "64 MiB"\n')
        fill_tables(lab, chunks, 0)
        put_some(lab, 10)
        optimize, report = peak_bytes(lab, "optimize")
        assert report["files_optimized"] == 1
        reconcile, report = peak_bytes(lab, "reconcile", "--dry-run")
        assert (report["rounds"] == 1) == (chunks == 300_000)
        peaks[chunks] = max(optimize, reconcile)
    assert max(peaks.values()) <= 64 * MIB + RSS_SLACK_BYTES, peaks
