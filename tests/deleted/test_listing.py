"""What a listing of deletions takes for lost (native/src/tree/deleted.rs)."""

import json
import os
from dataclasses import replace
from itertools import accumulate
from pathlib import Path

from dedupd_core import native
from dedupd_core.format.deletion import LOG_HEADER_BYTES, Cause, Deletion, LogHeader, encoded_bytes
from dedupd_core.system.files import opened
from dedupd_core.units import KIB
from tests.support.deletions import deletion_of, log_of
from tests.support.lab import Lab, new_lab, noise

SEED = 5
NAMES = ("there", "gone", "plain", "changed")


def deletion(lab: Lab, name: str, cause: Cause) -> Deletion:
    """One of the file as it is, but for ``changed``, which had another length in the store."""
    stub = lab.stub("there" if name == "plain" else name)
    assert stub is not None
    if name == "changed":
        stub = replace(stub, covered=stub.covered - 1)
    with opened(os.open(lab.data / name, os.O_PATH)) as fd:
        inode, generation = os.fstat(fd).st_ino, native.system.generation(fd)
    one = deletion_of(7, os.fsencode(name))
    return one._replace(cause=cause, stub=stub, inode=inode, generation=generation)


def test_what_is_where_it_was_is_told_from_what_is_lost(tmp_path: Path) -> None:
    """By the inode, where the file was taken, or by what is in the store."""
    lab = new_lab(tmp_path / "volume")
    for name in NAMES:
        lab.put(name, noise(200 * KIB))
    (lab.data / "plain").unlink()
    lab.optimize()
    lab.put("plain", b"plain")
    found = list[Deletion]()
    for cause in Cause:
        for name in NAMES:
            same = deletion(lab, name, cause)
            found += [same, same._replace(generation=same.generation + 1)]
    found.append(found[0]._replace(path=b"#%d" % found[0].inode))
    (lab.data / "gone").unlink()

    header = LogHeader(1, bytes(16), 0, SEED)
    data = bytes(LOG_HEADER_BYTES) + b"".join(log_of(header, found))
    log = native.deletions.DeletionLog(
        data, seed=SEED, is_proven=True, uid=None, first=LOG_HEADER_BYTES
    )
    with lab.opened() as volume:
        lines, _ = log.lines(
            b"",
            number=1,
            uid=None,
            before=2**32 - 1,
            now_ns=0,
            keep_ns=2**64 - 1,
            limit=99,
            data_fd=volume.data_fd,
            attribute=volume.space.name,
            seed=volume.space.seeds[0],
        )
    told = {json.loads(line)["id"] for line in lines}
    offsets = accumulate(map(encoded_bytes, found[:-1]), initial=LOG_HEADER_BYTES)
    lost = [f"1-{offset}" in told for offset in offsets]
    expected = list[bool]()
    for cause in Cause:
        is_part = cause not in (Cause.REMOVED, Cause.REPLACED)
        expected += [False, False, True, True, is_part, True, is_part, True]
    assert lost == [*expected, True]
