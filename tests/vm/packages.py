"""Debian packages for the virtual machines: kernels, and programs that only the guests need.

apt works on lists and a cache in ``build/vm``. The configuration of apt of this machine, its lists
and its installed packages are read and never changed.
"""

import os
import re
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

from tests.support.sources import ROOT

CACHE = ROOT / "build/vm"
MIRROR = "http://deb.debian.org/debian"
KEYRING = "/usr/share/keyrings/debian-archive-keyring"

SUITES = ("bookworm", "trixie", "trixie-backports", "sid")
"""Debian 12 has Linux 6.1 and Debian 13 has 6.12; the newest kernel is in one of the others."""

GUEST_PACKAGES = (
    *("busybox-static", "kmod", "lvm2", "dmsetup", "thin-provisioning-tools", "quota", "fsverity"),
    *("nfs-kernel-server", "nfs-common"),
    *("selinux-policy-default", "policycoreutils", "selinux-utils"),
)
"""Not installed on this machine: the package of the NFS server would start a server here."""

_KERNEL_PARTS = re.compile(r"linux-(image|binary|modules)-\d[^ ,]*")
_MERGED = ("bin", "sbin", "lib", "lib64")
"""Directories that are links to those in /usr, and that some packages still fill."""


@dataclass(frozen=True)
class Kernel:
    """An unpacked kernel. ``release``: as ``uname -r`` prints it. ``tree``: holds its modules."""

    suite: str
    version: str
    release: str
    tree: Path

    @property
    def image(self) -> Path:
        """Beside the modules since Linux 7."""
        old = self.tree / f"boot/vmlinuz-{self.release}"
        return old if old.exists() else self.modules / "vmlinuz"

    @property
    def modules(self) -> Path:
        return self.tree / "usr/lib/modules" / self.release


def kernel(suite: str) -> Kernel:
    """Fetch and unpack the kernel of a suite. Without a network the last one is used."""
    apt = _Apt(CACHE / "kernels/apt", sources=_kernel_sources())
    apt.update()
    [version] = re.findall(
        r"^Version: (\S+)", apt.cache("show", f"linux-image-amd64/{suite}"), re.M
    )
    tree = CACHE / "kernels" / f"{suite}-{version.replace('~', '-')}"
    if not tree.exists():
        made = _fresh(tree)
        for name in _parts_of(apt, f"linux-image-amd64/{suite}"):
            _unpack(apt.download(name), made)
        subprocess.run(["depmod", "-b", made / "usr", _release(made)], check=True)
        made.rename(tree)
    return Kernel(suite, version, _release(tree), tree)


def _release(tree: Path) -> str:
    [found] = (tree / "usr/lib/modules").iterdir()
    return found.name


def guest_programs() -> Path:
    """Fetch and unpack those of :data:`GUEST_PACKAGES` that this machine does not have."""
    tree = CACHE / "guest/tree"
    wanted = " ".join(GUEST_PACKAGES)
    note = CACHE / "guest/unpacked"
    if not note.exists() or note.read_text() != wanted:
        apt = _Apt(CACHE / "guest/apt")
        apt.update()
        made = _fresh(tree)
        for package in apt.download_missing(GUEST_PACKAGES):
            _unpack(package, made)
        _build_policy(made)
        shutil.rmtree(tree, ignore_errors=True)
        made.rename(tree)
        note.write_text(wanted)
    return tree


class _Apt:
    """apt-get and apt-cache with a state of their own in a directory."""

    def __init__(self, directory: Path, sources: str | None = None) -> None:
        """``sources``: lines that replace the package sources and the packages of the machine."""
        self._archives = directory / "archives"
        for name in ("lists/partial", "archives/partial"):
            (directory / name).mkdir(parents=True, exist_ok=True)
        options = {
            "Dir::State::lists": directory / "lists",
            "Dir::Cache": directory,
            "Acquire::Languages": "none",
            "APT::Sandbox::User": "",
            "Debug::NoLocking": "1",
        }
        if sources is not None:
            (directory / "sources.list").write_text(sources)
            (directory / "status").touch()
            options |= {
                "Dir::Etc::sourcelist": directory / "sources.list",
                "Dir::Etc::sourceparts": "/dev/null",
                "Dir::State::status": directory / "status",
            }
        self._options = [f"-o{name}={value}" for name, value in options.items()]

    def _run(self, *command: str, directory: Path | None = None, check: bool = True) -> str:
        done = subprocess.run(
            [command[0], *self._options, *command[1:]],
            cwd=directory,
            env={**os.environ, "LC_ALL": "C.UTF-8", "DEBIAN_FRONTEND": "noninteractive"},
            capture_output=True,
            text=True,
            check=False,
        )
        if check and done.returncode:
            raise RuntimeError(f"{' '.join(command)}: {done.stderr.strip()}")
        return done.stdout

    def update(self) -> None:
        """Update the lists; without a network the old ones stay."""
        self._run("apt-get", "update", "-q", check=False)

    def cache(self, *arguments: str) -> str:
        return self._run("apt-cache", *arguments)

    def download(self, package: str) -> Path:
        """Download one package, and nothing that it depends on."""
        for old in self._archives.glob("*.deb"):
            old.unlink()
        self._run("apt-get", "download", "-q", package, directory=self._archives)
        [found] = self._archives.glob("*.deb")
        return found

    def download_missing(self, packages: tuple[str, ...]) -> list[Path]:
        """Download packages, and all that they depend on, except what is installed."""
        self._run(
            *("apt-get", "install", "-q", "-y", "--no-install-recommends", "--download-only"),
            *packages,
        )
        return sorted(self._archives.glob("*.deb"))


def _kernel_sources() -> str:
    keyring = next((p for end in ("gpg", "pgp") if Path(p := f"{KEYRING}.{end}").exists()), None)
    if keyring is None:
        raise RuntimeError(f"{KEYRING}.gpg: missing; install debian-archive-keyring")
    return "".join(f"deb [signed-by={keyring}] {MIRROR} {suite} main\n" for suite in SUITES)


def _parts_of(apt: _Apt, package: str) -> list[str]:
    """Name the packages, with versions, that a kernel consists of."""
    found: list[str] = []
    waiting = [package]
    while waiting:
        shown = apt.cache("show", waiting.pop())
        for depends in re.findall(r"^Depends: (.*)", shown, re.M):
            for part in depends.split(", "):
                name, _, version = part.partition(" (= ")
                one = f"{name}={version.rstrip(')')}"
                if _KERNEL_PARTS.fullmatch(name) and one not in found:
                    found.append(one)
                    waiting.append(one)
    return found


_SELINUX = """SELINUX=enforcing
SELINUXTYPE=default
"""
_SEMANAGE = """module-store = direct
compiler-directory = {tree}/usr/libexec/selinux/hll
[load_policy]
path = /bin/true
[end]
[setfiles]
path = /bin/true
[end]
[sefcontext_compile]
path = {tree}/usr/sbin/sefcontext_compile
args = $@
[end]
"""


def _build_policy(tree: Path) -> None:
    """Build Debian's policy of SELinux in a tree: minutes in a guest, and less than one here."""
    modules = sorted((tree / "usr/share/selinux/default").glob("*.pp.bz2"))
    (tree / "etc/selinux/config").write_text(_SELINUX)
    (tree / "etc/selinux/semanage.conf").write_text(_SEMANAGE.format(tree=tree))
    semodule = next(
        p for p in (tree / "usr/sbin/semodule", Path("/usr/sbin/semodule")) if p.exists()
    )
    done = subprocess.run(
        [semodule, "-p", tree, "-s", "default", "-n", "-X", "100", "-i", *modules],
        env={**os.environ, "LD_LIBRARY_PATH": str(tree / "usr/lib/x86_64-linux-gnu")},
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise RuntimeError(f"semodule: {done.stderr.strip()}")


def _fresh(tree: Path) -> Path:
    made = tree.with_name(f"{tree.name}.new")
    shutil.rmtree(made, ignore_errors=True)
    made.mkdir(parents=True)
    return made


def _unpack(package: Path, tree: Path) -> None:
    """Unpack a package; what it has in /bin, /sbin and /lib goes to /usr."""
    part = tree / "unpacked"
    subprocess.run(["dpkg-deb", "-x", package, part], check=True)
    for name in _MERGED:
        if (part / name).is_dir():
            shutil.copytree(part / name, part / "usr" / name, symlinks=True, dirs_exist_ok=True)
            shutil.rmtree(part / name)
    shutil.copytree(part, tree, symlinks=True, dirs_exist_ok=True)
    shutil.rmtree(part)
    package.unlink()
