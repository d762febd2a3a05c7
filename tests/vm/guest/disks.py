"""Disks of a guest: images on loop devices, and what the device mapper makes of them.

No guest runs udev: programs make the device nodes (``DM_DISABLE_UDEV``).
"""

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

SECTOR_BYTES = 512


def run(*command: str | Path) -> str:
    """Run a program, which must succeed; its output."""
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{[*map(str, command)]}: {done.stdout}{done.stderr}"
    return done.stdout


@contextmanager
def loop_device(image: Path, size_bytes: int) -> Iterator[str]:
    """A loop device on a new sparse image."""
    with open(image, "xb") as file:
        file.truncate(size_bytes)
    device = run("losetup", "--find", "--show", image).strip()
    try:
        yield device
    finally:
        run("losetup", "--detach", device)
        image.unlink()


@contextmanager
def mounted(device: str, point: Path, options: str = "defaults") -> Iterator[Path]:
    """A file system, mounted at a new or empty directory."""
    point.mkdir(exist_ok=True)
    run("mount", "-o", options, device, point)
    try:
        yield point
    finally:
        run("umount", point)


@contextmanager
def made(
    directory: Path, make: list[str], options: str = "defaults", size_bytes: int = 512 << 20
) -> Iterator[Path]:
    """A new file system on a loop device, mounted. ``make``: the program that makes it."""
    with loop_device(directory / "image", size_bytes) as device:
        run(*make, device)
        with mounted(device, directory / "mount", options) as point:
            yield point


@dataclass(frozen=True)
class Mapped:
    """A device of the device mapper that is mapped to one device below, in changing ways."""

    name: str
    below: str
    sectors: int

    @property
    def device(self) -> str:
        return f"/dev/mapper/{self.name}"

    def load(self, *lines: str) -> None:
        """Replace the table. Requests in flight end by the old table."""
        run("dmsetup", "suspend", "--noflush", "--nolockfs", self.name)
        run("dmsetup", "reload", self.name, "--table", "\n".join(lines))
        run("dmsetup", "resume", self.name)

    def heal(self) -> None:
        self.load(self.linear(0, self.sectors))

    def linear(self, start: int, end: int) -> str:
        return f"{start} {end - start} linear {self.below} {start}"

    def break_all(self) -> None:
        """Make every request fail."""
        self.load(f"0 {self.sectors} error")

    def break_ranges(self, ranges: list[tuple[int, int]]) -> None:
        """Make requests fail that touch one of these ranges of bytes, sorted and disjoint."""
        lines, at = [], 0
        for start_bytes, end_bytes in ranges:
            start, end = start_bytes // SECTOR_BYTES, -(-end_bytes // SECTOR_BYTES)
            lines += [self.linear(at, start)] if at < start else []
            lines.append(f"{start} {end - start} error")
            at = end
        self.load(*lines, self.linear(at, self.sectors))

    def refuse_writes(self) -> None:
        """Make every write fail; reads succeed."""
        self.load(f"0 {self.sectors} flakey {self.below} 0 0 600 1 error_writes")

    def flicker(self) -> None:
        """Make every request fail in every other second."""
        self.load(f"0 {self.sectors} flakey {self.below} 0 1 1")


@contextmanager
def mapped(below: str, name: str = "shaky") -> Iterator[Mapped]:
    sectors = int(run("blockdev", "--getsz", below))
    run("dmsetup", "create", name, "--table", f"0 {sectors} linear {below} 0")
    device = Mapped(name, below, sectors)
    try:
        yield device
    finally:
        device.heal()
        run("dmsetup", "remove", "--retry", name)


def drop_caches() -> None:
    """Make the kernel forget all clean pages, so that reads come from the disk."""
    subprocess.run(["sync"], check=True)
    Path("/proc/sys/vm/drop_caches").write_text("3")
