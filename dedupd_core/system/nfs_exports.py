"""The exports of the kernel's NFS server, as published by ``exportfs``."""

import os
from dataclasses import dataclass

from dedupd_core.system.paths import lies_in, unescaped

TABLES = ("/var/lib/nfs/etab", "/proc/fs/nfsd/exports")
"""The first table is exportfs' own, of all exports; the other has those in use."""


@dataclass(frozen=True, slots=True)
class Export:
    """A directory that clients may mount. ``options``: as in exports(5), with the defaults."""

    path: str
    client: str
    options: frozenset[str]

    @property
    def has_fsid(self) -> bool:
        """True if its handles contain a number, or a uuid, that the administrator has chosen."""
        return any(option.startswith("fsid=") for option in self.options)


def exports() -> list[Export]:
    """Return all exports; empty if no server is installed, or this user has no access."""
    for table in TABLES:
        try:
            with open(table, encoding="utf-8", errors="surrogateescape") as file:
                return parse_exports(file.read())
        except OSError:
            continue
    return []


def parse_exports(text: str) -> list[Export]:
    """Parse the lines of a table: a path, then clients with options in parentheses."""
    found = []
    for line in text.splitlines():
        words = line.split()
        if not words or line.startswith("#"):
            continue
        path = unescaped(words[0])
        for word in words[1:]:
            client, _, rest = word.partition("(")
            options = frozenset(filter(None, rest.removesuffix(")").split(",")))
            found.append(Export(os.path.normpath(path), client, options))
    return found


@dataclass(frozen=True, slots=True)
class Fault:
    """A problem of an export for users. ``is_bad``: they lose files, or see none."""

    is_bad: bool
    found: str
    remedy: str


def line_for(root: str, uuid: str) -> str:
    """Return the line of /etc/exports for a volume: its handles use its uuid, on any machine."""
    path = root.replace("\\", "\\134").replace(" ", "\\040")
    return f"{path} *(rw,sync,no_subtree_check,mp,fsid={uuid})"


def faults(root: str, base: str, uuid: str, found: list[Export]) -> list[Fault]:
    """Return the problems of exports of the volume at ``root``, the worst first. ``base``: the
    directory with its files."""
    line = f"in /etc/exports: `{line_for(root, uuid)}`, then `exportfs -ra`"
    told = []
    for one in found:
        if lies_in(one.path, base):
            told.append(
                Fault(True, f"{one.path}, below the mount, is exported to {one.client}", line)
            )
        elif lies_in(one.path, root):
            if not one.has_fsid:
                why = (
                    "without fsid=: it is refused, or its clients lose their files with the next"
                    " mount"
                )
                told.append(Fault(True, f"{one.path} is exported to {one.client} {why}", line))
            if "subtree_check" in one.options:
                why = "with subtree_check: clients lose files that are renamed"
                told.append(Fault(False, f"{one.path} is exported to {one.client} {why}", line))
        elif lies_in(root, one.path) and not any(other.path == root for other in found):
            why = f"{one.path} is exported to {one.client}, but the volume in it is not"
            told.append(Fault(False, f"{why}: the volume looks empty there", line))
    return sorted(told, key=lambda fault: not fault.is_bad)


def in_the_way(root: str, found: list[Export]) -> list[str]:
    """Return the exports whose clients may have handles of a directory that is not yet a volume."""
    paths = {one.path for one in found}
    return sorted(path for path in paths if lies_in(path, root) or lies_in(root, path))
