"""The disks of two guests under load at once: one whose quiet ranges are taken, one left alone.

    sudo python -m benchmarks.guests DIR [--mib 4096] [--seconds 3600] [--min-age 5m]

Makes two volumes on loop devices below DIR, with the profile `vm`, each with an image. fio reads
and writes 4 KiB at random in an eighth of each, some places more often than others, 150 times a
second each, with an `fdatasync` after every eighth write; `dedupd run --pressing optimize` runs
once a minute on one of them. At the end both are mounted anew, and each block has to be what the
image began with, or what fio's log says was written. Prints JSON: 99th percentiles in ms, their
ratios, MiB of blocks of the image before and after; exit status 1 where a block was wrong. Takes
six times the image.
"""

import argparse
import json
import os
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from benchmarks.measure import DEDUPD, dedupd
from dedupd_core.units import MIB
from tests.support.crash import ext4

BLOCK_BYTES = 4096
PIECE_BYTES = 64 * MIB
"""Of the image: noise that repeats, noise of its own, and text."""

BETWEEN_RUNS_S = 60.0
UMOUNT_TRIES = 20
RATED = ("read", "write", "sync")


@contextmanager
def volume(base: Path, name: str, mib: int, min_age: str, busy_files: str) -> Iterator[Path]:
    """A mounted volume on a disk of its own."""
    place = base / name
    place.mkdir()
    with ext4(place, 2 * mib + 2000, ("-m", "0")) as view:
        share = view / "share"
        share.mkdir()
        dedupd("enable", "--no-mount", "--profile", "vm", share)
        settings = {"min_age": min_age, "busy_files": busy_files, "space_low": "0", "reserve": "0"}
        for key, value in settings.items():
            dedupd("policy", share, key, value)
        dedupd("mount", share)
        try:
            yield share
        finally:
            unmount(share)


def unmount(share: Path) -> None:
    """Waits for those that have just closed their files."""
    for _ in range(UMOUNT_TRIES):
        command = [*DEDUPD, "umount", str(share)]
        if subprocess.run(command, capture_output=True, check=False).returncode == 0:
            return
        time.sleep(1)
    dedupd("umount", share)


def pieces(mib: int) -> Iterator[bytes]:
    """What an image begins with."""
    rng = random.Random(1)
    again = rng.randbytes(PIECE_BYTES // 2)
    for number in range(mib * MIB // PIECE_BYTES):
        text = b"text %d " % number
        quarter = PIECE_BYTES // 4
        yield again + rng.randbytes(quarter) + (text * (quarter // len(text) + 1))[:quarter]


def make_image(path: Path, mib: int) -> None:
    with open(path, "wb") as file:
        for piece in pieces(mib):
            file.write(piece)
        file.flush()
        os.fsync(file.fileno())


def load(path: Path, mib: int, seconds: int, log: Path) -> "subprocess.Popen[str]":
    """fio on an image. Each block that it writes has its own offset in it, over and over."""
    command = [
        *("fio", "--name=guest", f"--filename={path}", "--rw=randrw", f"--bs={BLOCK_BYTES}"),
        *("--ioengine=psync", f"--offset={PIECE_BYTES}", f"--size={mib * MIB // 8}"),
        *("--norandommap", "--random_distribution=zipf:1.1", "--fallocate=none"),
        *("--fdatasync=8", "--rate_iops=150", "--time_based", f"--runtime={seconds}"),
        *(f"--number_ios={600 * seconds}", f"--write_iolog={log}", "--output-format=json"),
        *("--verify=pattern", "--verify_pattern=%o", "--do_verify=0", "--verify_state_save=0"),
    ]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


def percentiles_ms(found: dict[str, Any]) -> dict[str, float]:
    """The 99th of each kind of request."""
    kinds = {kind: found[kind]["lat_ns" if kind == "sync" else "clat_ns"] for kind in RATED}
    return {kind: one["percentile"]["99.000000"] / 1e6 for kind, one in kinds.items()}


def wrong_blocks(path: Path, mib: int, log: Path) -> int:
    """How many blocks are neither as at the beginning nor as fio has written them."""
    with open(log) as lines:
        rows = [line.split() for line in lines]
    written = {int(row[-2]) for row in rows if len(row) >= 4 and row[-3] == "write"}
    wrong = at = 0
    with open(path, "rb") as file:
        for piece in pieces(mib):
            found = file.read(len(piece))
            for start in range(0, len(piece), BLOCK_BYTES):
                block = found[start : start + BLOCK_BYTES]
                if at + start in written:
                    wrong += block != (at + start).to_bytes(8, "little") * (BLOCK_BYTES // 8)
                else:
                    wrong += block != piece[start : start + BLOCK_BYTES]
            at += len(piece)
    return wrong


def allocated_mib(path: Path) -> int:
    return os.stat(path).st_blocks * 512 // MIB


def measure(base: Path, mib: int, seconds: int, min_age: str) -> dict[str, Any]:
    with ExitStack() as stack:
        shares = {
            name: stack.enter_context(volume(base, name, mib, min_age, busy))
            for name, busy in (("alone", "skip"), ("taken", "ranges"))
        }
        images = {name: share / "guest.img" for name, share in shares.items()}
        for image in images.values():
            make_image(image, mib)
        logs = {name: base / f"{name}.log" for name in shares}
        guests = {name: load(images[name], mib, seconds, logs[name]) for name in shares}
        end = time.monotonic() + seconds
        before = allocated_mib(images["taken"])
        while (left := end - time.monotonic()) > 0:
            time.sleep(min(left, BETWEEN_RUNS_S))
            dedupd("run", "--pressing", "optimize", shares["taken"])
        found = {
            name: percentiles_ms(json.loads(guest.communicate()[0])["jobs"][0])
            for name, guest in guests.items()
        }
        ratios = {kind: found["taken"][kind] / found["alone"][kind] for kind in RATED}
        after = allocated_mib(images["taken"])
        for share in shares.values():
            unmount(share)
            dedupd("mount", share)
        wrong = {name: wrong_blocks(images[name], mib, logs[name]) for name in shares}
        sizes = {"before": before, "after": after}
        return {"p99_ms": found, "ratios": ratios, "wrong_blocks": wrong, "mib": sizes}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("directory", type=Path)
    parser.add_argument("--mib", type=int, default=4096, help="of each image")
    parser.add_argument("--seconds", type=int, default=3600)
    parser.add_argument("--min-age", default="5m")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=given.directory, prefix="guests-") as name:
        found = measure(Path(name), given.mib, given.seconds, given.min_age)
    print(json.dumps(found, indent=2))
    return 1 if any(found["wrong_blocks"].values()) else 0


if __name__ == "__main__":
    sys.exit(main())
