"""A refine run over many records takes no more memory than the policy gives it."""

import json
import os
from pathlib import Path

import pytest

from dedupd_core.config.policy import Policy
from dedupd_core.format import container as fmt
from dedupd_core.format import table as tbl
from dedupd_core.format.container import Codec, Kind
from dedupd_core.format.ids import make_id
from dedupd_core.format.table import State
from dedupd_core.units import MIB
from dedupd_core.volume.hints import HintKey
from jobs.check.deltas import note_retained
from tests.support.lab import Lab, new_lab, run_program

PER_CONTAINER = 100_000
STORED_BYTES = 4000


def grow(lab: Lab, containers: range) -> None:
    """Add containers that a run has looked at: every third record leans on the one before it, which
    nothing else needs. There is nothing in them but their tables."""
    with lab.opened() as volume, volume.containers(Kind.CHUNKS) as directory:
        for number in containers:
            header = fmt.FileHeader(Kind.CHUNKS, number, 1, 0, directory.volume_id, 1)
            seed, size = fmt.seed_of(header), fmt.record_size(STORED_BYTES)
            end, entries = fmt.FILE_HEADER_BYTES, bytearray()
            for ordinal in range(PER_CONTAINER):
                leans = ordinal % 3 == 1
                target = make_id(number, ordinal - 1) if leans else 0
                codec = Codec.DELTA if leans else Codec.ZSTD
                # Too long to be worth it without its base.
                raw_length = 900_000 if leans else 80_000
                row = (os.urandom(32), end, target, STORED_BYTES, raw_length, 0, State.LIVE, codec)
                entries += tbl.encode_entry(tbl.TableEntry(*row), seed)
                end += size
            with open(lab.container(Kind.CHUNKS, number), "wb") as file:
                file.write(fmt.encode_file_header(header))
                file.truncate(end)
            mark = tbl.TableHeader.of(header, end, PER_CONTAINER)
            lab.table(Kind.CHUNKS, number).write_bytes(tbl.encode_header(mark) + entries)
            volume.store_hints.put(HintKey.REFINED.of(f"{number:08d}"), [PER_CONTAINER, 2, 0])
            note_retained(volume.store_hints, {number: b"\x49\x92\x24" * (PER_CONTAINER // 24)})


def peak_bytes(lab: Lab) -> int:
    done = run_program("run", "--here", "refine", lab.root, "--json")
    report = json.loads(done.stdout)
    assert report["outcome"] == "no new chunks are cold", report
    assert report["deltas"] > 0
    return int(report["resources"]["memory_bytes_peak"])


@pytest.mark.slow
def test_a_hundred_million_records_need_no_more_than_the_policy_gives(tmp_path: Path) -> None:
    """Reckoned from how it grows between one and a half million and three and a half: before, the
    groups that may leave their bases fill what they may take."""
    lab = new_lab(tmp_path / "volume")
    lab.set_policy('min_age = "0s"\nrefine = "full"\nrefine_age = "0s"\n')
    grow(lab, range(1, 16))
    first = peak_bytes(lab)
    grow(lab, range(16, 36))
    second = peak_bytes(lab)
    each = max(0, second - first) / (20 * PER_CONTAINER)
    print(f"\n{first / MIB:.1f} and {second / MIB:.1f} MiB: {each:.2f} bytes a record")
    assert first + each * 100_000_000 < Policy().memory_bytes
