"""``dedupd demo``: optimize real files of this machine in a temporary volume."""

import filecmp
import os
import shutil
import stat
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import click
from rich.table import Table

from analysis.dataset import build
from dedupd.cli.common import PATH, exits, job_run, json_option, print_json
from dedupd.cli.terminal import show
from dedupd_core.errors import EXIT_DAMAGED, NoSpace, UsageError
from dedupd_core.system.disk import Disk
from dedupd_core.units import counted, format_duration, format_size, parse_size
from dedupd_core.volume.enabling.enable import enable
from dedupd_core.volume.volume import Volume
from fuse_stub.mounts.mount_process import mount_in_background, unmount
from jobs.check.verify import Verify
from jobs.frame.run import JobRun
from jobs.optimize.optimize_job import Optimize, OptimizeReport
from jobs.usage.volume_figures import VolumeFigures, volume_figures

_POLICY = {"min_age": "0s", "min_size": "4k"}
"""The demonstration includes new files, and files of any size above one block."""


@dataclass(frozen=True, slots=True)
class Comparison:
    """The result of reading all files through the mount and comparing them."""

    files: int
    bytes: int
    differences: list[str]


@click.command("demo")
@click.option("--size", default="512m", show_default=True, help="Approximate amount of data.")
@click.option(
    "--dir",
    "directory",
    type=PATH,
    help="Existing directory to work in. Default: a temporary directory.",
)
@click.option("--keep", is_flag=True, help="Keep the volume and the originals afterwards.")
@json_option
@exits
def command(size: str, directory: str | None, keep: bool, as_json: bool) -> None:
    """Deduplicate copies of real files, mount them, and compare every byte with the originals.

    The demonstration changes nothing outside its directory.
    """
    size_bytes = parse_size(size)
    where = directory or _temporary_place()
    if not os.path.isdir(where):
        raise UsageError(f"{where}: no such directory")
    place = tempfile.mkdtemp(prefix="dedupd-demo-", dir=where)
    try:
        _check_space(place, size_bytes)
        result = _demonstrate(place, size_bytes, as_json)
    finally:
        if not keep:
            shutil.rmtree(place, ignore_errors=True)
    if as_json:
        print_json(result)
    else:
        _show(result)
        if keep:
            click.echo(f"The volume is {place}/volume; the originals are in {place}/originals.")
    if result["differences"] or result["findings"]:
        sys.exit(EXIT_DAMAGED)


def _temporary_place() -> str:
    """Return ``/var/tmp``: ``/tmp`` is often in memory and cannot hold a volume."""
    return "/var/tmp" if os.access("/var/tmp", os.W_OK) else tempfile.gettempdir()


def _check_space(place: str, size_bytes: int) -> None:
    if size_bytes < 16 << 20:
        raise UsageError("--size: too small; use at least 16m")
    free = shutil.disk_usage(place).free
    need = 3 * size_bytes
    if free < need:
        raise NoSpace(
            f"{place}: the demonstration needs {format_size(need)}, but only {format_size(free)}"
            " are free; use a smaller --size or another --dir"
        )


def _demonstrate(place: str, size_bytes: int, quiet: bool) -> dict[str, Any]:
    originals, volume_path = os.path.join(place, "originals"), os.path.join(place, "volume")
    mountpoint = os.path.join(place, "mounted")
    for path in (originals, mountpoint):
        os.mkdir(path)

    def say(text: str) -> None:
        if not quiet:
            click.echo(text)

    say(f"1. Copying files of this machine to {originals}")
    with job_run("copy") as run:
        build(
            Path(originals),
            size_bytes,
            lambda done: run.update(done=done, total=size_bytes),
            enough_bytes=4 * size_bytes,
        )
    shutil.copytree(originals, volume_path, symlinks=True)
    os.sync()  # so that the times are those of the job, without writing the copies
    say(f"2. Enabling and optimizing the volume {volume_path}")
    enable(volume_path, policy_values=_POLICY, force=True, disk=Disk())
    with Volume.open(volume_path) as volume:
        report = _optimize(volume)
        status = volume_figures(volume)
    say(f"3. Mounting it at {mountpoint}, and comparing every file with its original")
    mount_in_background(volume_path, mountpoint)
    try:
        with job_run("compare") as run:
            comparison = _compare(originals, mountpoint, run)
    finally:
        unmount(mountpoint)
    say("4. Checking every invariant of the store")
    with Volume.open(volume_path) as volume, job_run("verify", unit="files") as run:
        findings = [asdict(finding) for finding in Verify(volume, run).run().findings]
    return _result(report, status, comparison, findings)


def _optimize(volume: Volume) -> OptimizeReport:
    with volume.job_lock(), job_run("optimize") as run:
        return Optimize(volume, run).run()


def _result(
    report: OptimizeReport,
    status: VolumeFigures,
    comparison: Comparison,
    findings: list[dict[str, str]],
) -> dict[str, Any]:
    sums, wall_s = report.sums, report.resources["wall_s"]
    return {
        "logical_bytes": status.logical_bytes,
        "stored_bytes": status.occupied_bytes,
        "saved_by_dedup_bytes": sums.duplicate_bytes + sums.zero_bytes,
        "saved_by_compression_bytes": sums.new_raw_bytes - sums.stored_bytes,
        "saved_fraction": status.saved_fraction,
        "files": status.files,
        "files_optimized": report.files_optimized,
        "chunks": sums.chunks,
        "distinct_chunks": sums.new_chunks,
        "optimize_s": wall_s,
        "bytes_per_s": sums.raw_bytes / wall_s if wall_s else 0.0,
        "memory_bytes_peak": report.resources["memory_bytes_peak"],
        "compared_files": comparison.files,
        "compared_bytes": comparison.bytes,
        "differences": comparison.differences,
        "findings": findings,
    }


def _compare(originals: str, mounted: str, run: JobRun) -> Comparison:
    """Compare the contents, types, sizes, modes and times of two trees."""
    files = size = 0
    differences: list[str] = []
    names = sorted(_entries(originals))
    if names != sorted(_entries(mounted)):
        differences.append("the trees have different names")
    for name in names:
        ours, theirs = os.path.join(originals, name), os.path.join(mounted, name)
        if (problem := _difference(ours, theirs)) is not None:
            differences.append(f"{name}: {problem}")
        status = os.lstat(ours)
        files += stat.S_ISREG(status.st_mode)
        size += status.st_size
        run.update(done=size, files=files)
    return Comparison(files, size, differences)


def _entries(root: str) -> Iterator[str]:
    for directory, names, files in os.walk(root):
        for name in names + files:
            yield os.path.relpath(os.path.join(directory, name), root)


def _difference(ours: str, theirs: str) -> str | None:
    try:
        a, b = os.lstat(ours), os.lstat(theirs)
        if (a.st_mode, a.st_uid, a.st_gid) != (b.st_mode, b.st_uid, b.st_gid):
            return "different mode or owner"
        if stat.S_ISREG(a.st_mode):
            if (a.st_size, a.st_mtime_ns) != (b.st_size, b.st_mtime_ns):
                return "different size or modification time"
            if not filecmp.cmp(ours, theirs, shallow=False):
                return "different bytes"
        if stat.S_ISLNK(a.st_mode) and os.readlink(ours) != os.readlink(theirs):
            return "different target"
    except OSError as error:
        return f"cannot be read: {error.strerror}"
    return None


def _show(result: dict[str, Any]) -> None:
    table = Table(show_header=False, title="Savings", title_justify="left")
    table.add_column(justify="left")
    table.add_column(justify="right")
    table.add_row("logical size", format_size(result["logical_bytes"]))
    table.add_row("stored size", format_size(result["stored_bytes"]))
    table.add_row("saved by dedup", format_size(result["saved_by_dedup_bytes"]))
    table.add_row("saved by compression", format_size(result["saved_by_compression_bytes"]))
    table.add_row("saved in total", f"{result['saved_fraction']:.1%}")
    table.add_row(
        "throughput",
        f"{format_size(int(result['bytes_per_s']))}/s ({format_duration(result['optimize_s'])})",
    )
    table.add_row("files", f"{result['files']}, {result['files_optimized']} of them optimized")
    table.add_row("chunks", f"{result['chunks']}, {result['distinct_chunks']} of them distinct")
    table.add_row("memory", format_size(int(result["memory_bytes_peak"])))
    show(table)
    if not result["differences"] and not result["findings"]:
        click.echo(
            f"All {counted(result['compared_files'], 'file')},"
            f" {format_size(result['compared_bytes'])}, are identical when read through the mount."
        )
    for message in result["differences"]:
        click.echo(f"  DIFFERS: {message}", err=True)
    for finding in result["findings"]:
        click.echo(f"  {finding['invariant']}: {finding['where']}: {finding['detail']}", err=True)
