"""Profiles: values of the policy for kinds of volumes, with the reasons for lists of types."""

from typing import Any, NamedTuple


class Types(NamedTuple):
    """File types with a common reason to be on a list."""

    types: tuple[str, ...]
    reason: str


COMPRESSED = [
    Types(("jpg", "jpeg", "png", "gif", "webp", "heic"), "pictures: already compressed"),
    Types(("mp3", "m4a", "aac", "ogg", "opus", "flac"), "sound: already compressed"),
    Types(("mp4", "m4v", "mkv", "mov", "avi", "webm", "wmv"), "films: already compressed"),
    Types(("zip", "7z", "rar", "gz", "tgz", "bz2", "xz", "zst"), "archives: already compressed"),
    Types(("docx", "xlsx", "pptx", "odt", "ods", "odp", "jar"), "archives with another extension"),
]
"""Types whose chunks hardly shrink: the list avoids testing each chunk."""

DATABASES = [
    Types(("mdf", "ndf", "ldf", "ibd", "edb", "jrs"), "databases: written in place continuously"),
    Types(
        ("mdb", "accdb", "sqlite-wal", "sqlite-shm"), "databases: their chunks soon become garbage"
    ),
]
"""Types that are rewritten in small parts."""

STATE_OF_GUESTS = [
    Types(("vmem", "vswp", "vmss", "vsv"), "memory of guests: rewritten whenever they run"),
    Types(("lck", "nvram"), "locks and firmware of guests: small, and always open"),
]

PROFILES: dict[str, dict[str, Any]] = {
    "general": {"exclude_types": DATABASES, "no_compress_types": COMPRESSED},
    "vm": {"min_age": "1h", "busy_files": "ranges", "exclude_types": STATE_OF_GUESTS},
    "backup": {"min_age": "0s"},
}


def plain(value: object) -> Any:
    """Return a value of a profile without the reasons."""
    if isinstance(value, list) and all(isinstance(one, Types) for one in value):
        return [name for group in value for name in group.types]
    return value
