"""The options of a mount, in the form of mount(8) and ``/etc/fstab``."""

from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any

from dedupd_core.errors import UsageError
from dedupd_core.units import cut, parse_size


class AccessTimes(StrEnum):
    """The rules for updating access times on reads; see mount(8)."""

    NEVER = "noatime"
    RELATIVE = "relatime"
    ALWAYS = "strictatime"


@dataclass(frozen=True, slots=True)
class MountOptions:
    """The requested options. None: as the file system below, or, for a remount, unchanged."""

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
        """The form that :func:`parse_options` reads; empty without any option.

        mount(8) always passes ``rw``, which matters only for a remount.
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
        """Return these options after a remount with ``later``."""
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
"""The field and the value that an option sets."""

_SAME_AS = {"atime": "relatime", "nostrictatime": "relatime"}
"""The kernel's default rule is ``relatime``."""

_OF_OTHERS = frozenset(
    (
        *("defaults", "auto", "noauto", "user", "nouser", "users", "owner", "group"),
        *("nofail", "_netdev", "_rnetdev", "comment", "silent", "loud", "norelatime"),
        *("nomand", "noiversion", "nolazytime"),
        # The kernel shows these for each mount, so mount(8) passes them on in a remount.
        *("fd", "rootmode", "user_id", "group_id", "default_permissions", "allow_other"),
        *("max_read", "blksize", "fsname", "subtype"),
    )
)
"""Options for mount(8) and systemd, and options that are always in effect: ignored here."""

_BELOW = "must be set for the file system below, which stores the files"

_NOT_HERE = {
    "lazytime": _BELOW,
    "dirsync": _BELOW,
    "mand": "was removed from Linux",
    "bind": "mounts another directory; use `mount --bind`",
    "move": "moves a mount; use `mount --move`",
}


def parse_options(text: str, *, is_sloppy: bool = False) -> MountOptions:
    """Parse a list of options with commas; the last of contradicting options has effect.

    ``is_sloppy``: ignore unknown options (``mount -s``). Raises UsageError.
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
