"""Trees with everything that a tree can have, and what can be seen of them."""

import os
import stat
import subprocess
from pathlib import Path

from dedupd_core.units import KIB
from tests.support.lab import OLD_NS, Lab, noise, prose

Seen = dict[str, tuple[object, ...]]


def fill_with_all(lab: Lab) -> None:
    """Files of every kind, with all that belongs to them; needs root."""
    base = noise(900 * KIB, 7)
    lab.put("deep/er/large", base)
    lab.put("deep/er/again", base[: 500 * KIB] + b"an edit" + base[500 * KIB :])
    lab.put("prose", prose(700 * KIB, 3))
    lab.put("small", noise(5000, 11))
    lab.put("one-chunk", noise(20 * KIB, 1))
    lab.put("zeros", bytes(150 * KIB))
    lab.put("empty", b"")
    lab.put(b"no\xfftext \n", b"a name that is no text")
    sparse = lab.put("sparse", b"begin")
    with open(sparse, "r+b") as file:
        file.truncate(3 << 20)
        file.seek(1 << 20)
        file.write(noise(100 * KIB, 5))
    os.utime(sparse, ns=(OLD_NS, OLD_NS))
    data = lab.data
    os.link(data / "deep/er/large", data / "second-name")
    os.symlink("deep/er/large", data / "link")
    os.symlink(b"to\xffnowhere", os.fsencode(data) + b"/dangling")
    os.mkfifo(data / "pipe")
    os.mknod(data / "device", stat.S_IFCHR | 0o640, os.makedev(1, 3))
    (data / "empty-folder").mkdir()
    os.chown(data / "prose", 1234, 4321)
    os.chmod(data / "prose", 0o4750)
    os.chown(data / "link", 1234, 4321, follow_symlinks=False)
    os.setxattr(data / "prose", "user.mine", b"a value\0of bytes")
    os.setxattr(data / "deep", "user.of-a-folder", b"v")
    for path in ("small", "deep"):
        subprocess.run(["setfacl", "-m", "u:1234:rw", data / path], check=True)
    subprocess.run(["setfacl", "-d", "-m", "u:1234:rwx", data / "deep"], check=True)
    for name in ("deep/er", "deep", "empty-folder", "link", "pipe"):
        os.utime(data / name, ns=(OLD_NS, OLD_NS + 1), follow_symlinks=False)


def seen(root: Path, hidden: str = "trusted.dedupd", *, contents: bool = True) -> Seen:
    """Everything below a directory as users see it: kinds, owners, modes, times, attributes,
    names that are one file, contents."""
    found: Seen = {}
    names: dict[int, str] = {}
    paths = [
        os.path.join(directory, name)
        for directory, folders, files in os.walk(root)
        for name in (*folders, *files)
    ]
    for path in sorted(paths):
        status = os.lstat(path)
        name = os.path.relpath(path, root)
        attributes = {
            one: os.getxattr(path, one, follow_symlinks=False)
            for one in os.listxattr(path, follow_symlinks=False)
            if one != hidden
        }
        is_file = stat.S_ISREG(status.st_mode)
        content: object = None
        if stat.S_ISLNK(status.st_mode):
            content = os.readlink(path)
        elif is_file and contents:
            content = Path(path).read_bytes()
        found[name] = (
            *(status.st_mode, status.st_uid, status.st_gid, status.st_rdev),
            *(status.st_mtime_ns, status.st_size if is_file else 0),
            *(attributes, names.setdefault(status.st_ino, name), content),
        )
    return found
