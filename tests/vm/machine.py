"""One virtual machine: boots a kernel on the file tree of this machine, which it cannot change."""

import json
import lzma
import os
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import zstandard

from tests.support.sources import ROOT
from tests.vm.packages import CACHE, Kernel, guest_programs

QEMU = "qemu-system-x86_64"
MEMORY = "3G"
DISK_BYTES = 24 << 30
"""Sparse: a boot writes a small part of the disk."""

BOOT_S_MAX = int(os.environ.get("DEDUPD_VM_SECONDS", "3600"))

BOOTS_MAX = 3
"""Without KVM, QEMU sometimes misses a change that a kernel makes to its own code during the boot.
Then the kernel stops with the trap ``int3``."""

_BOOT_MODULES = ("virtio_pci", "virtio_blk", "9pnet_virtio", "9p", "overlay", "ext4")

_INIT = """#!/bin/busybox sh
export PATH=/bin
/bin/busybox mkdir -p /proc /sys /dev /host /guest /kernel /upper /new
/bin/busybox --install -s /bin
mount -t proc proc /proc
mount -t sysfs sysfs /sys
mount -t devtmpfs dev /dev
for module in $(cat /modules/order); do insmod /modules/$module; done
share() {{ mount -t 9p -o trans=virtio,version=9p2000.L,ro,cache=loose,msize=512000 $1 /$1; }}
share host && share guest && share kernel
mount -t tmpfs -o size=75% upper /upper
mkdir /upper/changes /upper/work
layers=lowerdir=/kernel:/guest:/host,upperdir=/upper/changes,workdir=/upper/work
mount -t overlay -o $layers root /new
for name in proc sys dev; do mount --move /$name /new/$name; done
for name in tmp run dev/shm; do mkdir -p /new/$name; mount -t tmpfs $name /new/$name; done
mkdir -p /new/dev/pts && mount -t devpts devpts /new/dev/pts
exec switch_root /new /bin/sh -c {command}
"""

_RUN = """
export PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin HOME=/root LC_ALL=C.UTF-8
export DM_DISABLE_UDEV=1
ip link set lo up
hostname vm
modprobe -a loop fuse dm-mod
mkfs.ext4 -q -F -E lazy_itable_init=1,lazy_journal_init=1 /dev/vda
rm -rf /scratch; mkdir -p /scratch; mount -t ext4 /dev/vda /scratch
mkdir -p /scratch/tmp; chmod 1777 /scratch/tmp
export TMPDIR=/scratch/tmp {environment}
cd {root}
{python} -m pytest --color=no -p tests.vm.reporter -p no:cacheprovider -p no:xdist -m '' \
    --timeout 900 --basetemp /scratch/tests {arguments}
sync
echo o >/proc/sysrq-trigger
while :; do :; done
"""


@dataclass(frozen=True)
class Result:
    """How a scenario ended: ``passed``, ``failed`` or ``skipped``, and why."""

    outcome: str
    seconds: float = 0.0
    text: str = ""


def boot(kernel: Kernel, arguments: Iterable[str]) -> dict[str, Result]:
    """Boot a kernel, and run tests of :mod:`tests.vm.guest` in it: results by the ID of the test.

    The console and the raw results stay in ``build/vm/runs/SUITE``. Raises RuntimeError if no test
    has run.
    """
    run = CACHE / "runs" / kernel.suite
    shutil.rmtree(run, ignore_errors=True)
    run.mkdir(parents=True)
    programs = guest_programs()
    _write_initramfs(run / "initramfs", kernel, programs, list(arguments))
    disk = run / "disk"
    ended = ""
    try:
        for _ in range(BOOTS_MAX):
            with open(disk, "wb") as file:
                file.truncate(DISK_BYTES)
            ended = _run_qemu(kernel, run, programs, disk)
            if found := _results(run, ended):
                return found
    finally:
        disk.unlink()
        (run / "initramfs").unlink()
    raise RuntimeError(f"{ended} before the first test, {BOOTS_MAX} times: see {run / 'console'}")


def _run_qemu(kernel: Kernel, run: Path, programs: Path, disk: Path) -> str:
    """Return the reason why the machine stopped."""
    shares = {"host": Path("/"), "guest": programs, "kernel": kernel.tree}
    command = [
        *(QEMU, "-nodefaults", "-no-reboot", "-display", "none", "-machine", "q35"),
        *("-accel", "tcg,thread=multi", "-cpu", "max", "-smp", "2", "-m", MEMORY),
        *("-kernel", str(kernel.image), "-initrd", str(run / "initramfs")),
        "-append",
        "console=ttyS0 panic=-1 quiet loglevel=5 security=selinux selinux=1 fuse.enable_uring=1"
        " mitigations=off no5lvl init_on_alloc=0",  # these cost much time without KVM
        *("-serial", f"file:{run / 'console'}", "-serial", f"file:{run / 'results'}"),
        *("-drive", f"file={disk},if=virtio,format=raw,cache=unsafe,discard=unmap"),
    ]
    for tag, path in shares.items():
        command += [
            "-virtfs",
            f"local,path={path},mount_tag={tag},security_model=none,readonly=on,multidevs=remap",
        ]
    with open(run / "qemu", "wb") as log:
        machine = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        try:
            status = machine.wait(BOOT_S_MAX)
        except subprocess.TimeoutExpired:
            return f"the machine was stopped after {BOOT_S_MAX} s"
        finally:
            machine.kill()
            machine.wait()
    return f"qemu ended with status {status}"


def _results(run: Path, ended: str) -> dict[str, Result]:
    """Read what the reporter wrote; a test that started and did not end has failed."""
    found: dict[str, Result] = {}
    for line in (run / "results").read_text(errors="replace").splitlines():
        try:
            record = json.loads(line)
        except ValueError:
            continue  # the machine ended within the line
        if record["outcome"] == "started":
            tail = (run / "console").read_text(errors="replace")[-4000:]
            found[record["test"]] = Result("failed", 0.0, f"{ended} during the test:\n{tail}")
        else:
            found[record["test"]] = Result(record["outcome"], record["seconds"], record["text"])
    return found


# --- the first file system of the machine -------------------------------------------------------


def _write_initramfs(path: Path, kernel: Kernel, programs: Path, arguments: list[str]) -> None:
    busybox = next(p for p in (programs / "usr/bin/busybox", Path("/bin/busybox")) if p.exists())
    files = list(_module_files(kernel))
    run = _RUN.format(
        environment="DEDUPD_VM=1 PYTHONPATH=" + shlex.quote(str(ROOT)),
        root=shlex.quote(str(ROOT)),
        python=shlex.quote(sys.executable),
        arguments=shlex.join(arguments),
    )
    entries: list[tuple[str, int, bytes]] = [
        ("bin", 0o40755, b""),
        ("modules", 0o40755, b""),
        ("bin/busybox", 0o100755, busybox.read_bytes()),
        ("init", 0o100755, _INIT.format(command=shlex.quote(run)).encode()),
        ("modules/order", 0o100644, "\n".join(name for name, _ in files).encode()),
        *((f"modules/{name}", 0o100644, content) for name, content in files),
    ]
    with open(path, "wb") as archive:
        for number, entry in enumerate(entries):
            archive.write(_cpio(number, *entry))
        archive.write(_cpio(0, "TRAILER!!!", 0, b""))


def _cpio(number: int, name: str, mode: int, content: bytes) -> bytes:
    """One file of an archive in the form ``newc``."""
    fields = (number, mode, 0, 0, 1, 0, len(content), 0, 0, 0, 0, len(name) + 1, 0)
    head = b"070701" + b"".join(b"%08X" % field for field in fields) + name.encode() + b"\0"
    return head + bytes(-len(head) % 4) + content + bytes(-len(content) % 4)


def _module_files(kernel: Kernel) -> Iterator[tuple[str, bytes]]:
    """The modules that mount the root, those that others need first, and decompressed."""
    needs: dict[str, tuple[str, list[str]]] = {}
    for line in (kernel.modules / "modules.dep").read_text().splitlines():
        file, _, others = line.partition(":")
        needs[_module_name(file)] = (file, [_module_name(one) for one in others.split()])
    done: set[str] = set()

    def with_needs(name: str) -> Iterator[tuple[str, bytes]]:
        if name in done or name not in needs:
            return  # or built in
        done.add(name)
        file, others = needs[name]
        for other in others:
            yield from with_needs(other)
        yield f"{name}.ko", _decompressed(kernel.modules / file)

    for name in _BOOT_MODULES:
        yield from with_needs(name)


def _module_name(file: str) -> str:
    return Path(file).name.partition(".")[0].replace("-", "_")


def _decompressed(path: Path) -> bytes:
    content = path.read_bytes()
    if path.suffix == ".xz":
        return lzma.decompress(content)
    if path.suffix == ".zst":
        return zstandard.ZstdDecompressor().decompressobj().decompress(content)
    return content
