"""The options of a mount, as mount(8) and ``/etc/fstab`` have them."""

from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any

from dedupd_core.errors import UsageError
from dedupd_core.units import cut, parse_size


class AccessTimes(StrEnum):
    """When a read moves the access time; see mount(8)."""

    NEVER = "noatime"
    RELATIVE = "relatime"
    ALWAYS = "strictatime"


@dataclass(frozen=True, slots=True)
class MountOptions:
    """What was asked for. None: as the file system below is mounted; of a mount that runs already:
    as it is."""

    read_only: bool | None = None
    suid: bool | None = None
    dev: bool | None = None
    exec: bool | None = None
    sync: bool | None = None
    symfollow: bool | None = None
    access_times: AccessTimes | None = None
    diratime: bool | None = None
    cache_bytes: int | None = None
    snapshot: bool = False
    force: bool = False
    remount: bool = False

    @property
    def text(self) -> str:
        """In the form that :func:`parse_options` reads; empty where nothing was asked for.

        mount(8) always asks for ``rw``, which says something only of a mount that runs already.
        """
        words = [
            option
            for option, (name, value) in _MEANINGS.items()
            if getattr(self, name) is value and (option != "rw" or self.remount)
        ]
        if self.cache_bytes is not None:
            words.append(f"cache={self.cache_bytes}")
        return ",".join(words)

    def changed_by(self, later: "MountOptions") -> "MountOptions":
        """These options after a remount with ``later``."""
        changes = {name: getattr(later, name) for name, _ in _MEANINGS.values()}
        kept = {name: value for name, value in changes.items() if value is not None}
        return replace(self, **{**kept, "remount": False})


NO_OPTIONS = MountOptions()

_MEANINGS: dict[str, tuple[str, Any]] = {
    "ro": ("read_only", True),
    "rw": ("read_only", False),
    "suid": ("suid", True),
    "nosuid": ("suid", False),
    "dev": ("dev", True),
    "nodev": ("dev", False),
    "exec": ("exec", True),
    "noexec": ("exec", False),
    "sync": ("sync", True),
    "async": ("sync", False),
    "symfollow": ("symfollow", True),
    "nosymfollow": ("symfollow", False),
    **{one.value: ("access_times", one) for one in AccessTimes},
    "diratime": ("diratime", True),
    "nodiratime": ("diratime", False),
    "snapshot": ("snapshot", True),
    "force": ("force", True),
    "remount": ("remount", True),
}
"""The field that an option sets, and its value."""

_SAME_AS = {"atime": "relatime", "nostrictatime": "relatime"}
"""The kernel's own rule is that of ``relatime``."""

_OF_OTHERS = frozenset(
    (
        *("defaults", "auto", "noauto", "user", "nouser", "users", "owner", "group"),
        *("nofail", "_netdev", "_rnetdev", "comment", "silent", "loud", "norelatime"),
        *("nomand", "noiversion", "nolazytime"),
        # The kernel shows these of each mount, so mount(8) passes them on when it mounts again.
        *("fd", "rootmode", "user_id", "group_id", "default_permissions", "allow_other"),
        *("max_read", "blksize", "fsname", "subtype"),
    )
)
"""Options for mount(8) and systemd, and those that say what holds in any case: nothing to do."""

_BELOW = "must be set for the file system below, which stores the files"

_NOT_HERE = {
    "lazytime": _BELOW,
    "dirsync": _BELOW,
    "mand": "was removed from Linux",
    "bind": "mounts another directory; use `mount --bind`",
    "move": "moves a mount; use `mount --move`",
}


def parse_options(text: str, *, is_sloppy: bool = False) -> MountOptions:
    """The options in a list with commas; of two that contradict each other, the last one counts.

    ``is_sloppy``: those that nobody knows are passed over (``mount -s``). Raises UsageError.
    """
    options = MountOptions()
    for word in filter(None, text.split(",")):
        name, _, value = word.partition("=")
        if name in _OF_OTHERS or name.startswith(("x-", "X-")):
            continue
        if word in _SAME_AS or word in _MEANINGS:
            field, meaning = _MEANINGS[_SAME_AS.get(word, word)]
            options = replace(options, **{field: meaning})
        elif name == "cache" and value:
            options = replace(options, cache_bytes=parse_size(value))
        elif not is_sloppy:
            reason = _NOT_HERE.get(name, "no such mount option; see dedupd-mount(1)")
            raise UsageError(f"{cut(word)}: {reason}")
    return options
