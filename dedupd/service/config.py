"""The configuration of the service: the volumes that it manages, and its users.

``dedupd.toml``, and one file per volume in ``volumes.d`` next to it, which ``dedupd enable``
writes. The policy of each volume, not this configuration, selects the files to optimize and the
times.
"""

import grp
import ipaddress
import os
import shlex
from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Annotated, Any

from dedupd.service.notices.problem import Severity
from dedupd_core.config.config_values import (
    DURATION,
    SWITCH,
    ValueFormat,
    choice,
    keys_of,
    parsed_table,
    read_table,
    size,
    whole,
)
from dedupd_core.config.schedule import Calendar, Off, parse_schedule
from dedupd_core.errors import ConfigurationError, UsageError
from dedupd_core.system.control_socket import runtime_dir
from dedupd_core.system.mount_table import is_uuid
from dedupd_core.units import MIB, brief, exact_size
from fuse_stub.mounts.mount_options import NO_OPTIONS, MountOptions, parse_options

CONFIG_PATH = "/etc/dedupd/dedupd.toml"
CONFIG_VARIABLE = "DEDUPD_CONFIG"
VOLUMES_DIRECTORY = "volumes.d"
SENDMAIL = "/usr/sbin/sendmail"

CACHE_BYTES_MIN = 1 * MIB
"""A mount needs memory for a few chunks."""

FILE_BYTES_MAX = 1 * MIB
"""A configuration is a short text; a larger file is a mistake."""


class Readers(StrEnum):
    """Users who may read the state of the service; changes always require root or the group."""

    EVERYONE = "everyone"
    GROUP = "group"


@dataclass(frozen=True, slots=True)
class Listen:
    """The address of the page and the metrics; every user of this machine may then read them."""

    host: str
    port: int


def default_socket() -> str:
    """Return the default socket of the service.

    It is not in the directory of the mounts' sockets, which other users cannot enter.
    """
    if os.geteuid() == 0:
        return "/run/dedupd.sock"
    return os.path.join(runtime_dir(), "service.sock")


def default_state() -> str:
    """Return the default directory for the state of the service."""
    if os.geteuid() == 0:
        return "/var/lib/dedupd"
    home = os.environ.get("XDG_STATE_HOME") or os.path.expanduser("~/.local/state")
    return os.path.join(home, "dedupd")


def config_path() -> str:
    """Return the default configuration file."""
    return os.environ.get(CONFIG_VARIABLE) or CONFIG_PATH


def _text(value: object) -> str:
    if not isinstance(value, str) or "\0" in value:
        raise UsageError("write a text in quotes")
    return value


def _absolute(value: object) -> str:
    path = _text(value)
    if not path.startswith("/"):
        raise UsageError('write an absolute path, for example "/srv/share"')
    return os.path.normpath(path).replace("//", "/")


def _socket(value: object) -> str:
    path = _absolute(value)
    if len(os.fsencode(path)) > 100:
        raise UsageError("the path of a socket has at most 100 bytes; write a shorter path")
    return path


def _group(value: object) -> str:
    name = _text(value)
    try:
        if name:
            grp.getgrnam(name)
    except KeyError:
        raise UsageError("this group does not exist; create it with `groupadd --system`") from None
    except ValueError:
        raise UsageError("not a valid group name") from None
    return name


def _listen(value: object) -> Listen | None:
    text = _text(value)
    if not text:
        return None
    host, _, port = text.rpartition(":")
    try:
        is_loopback = ipaddress.ip_address(host.strip("[]")).is_loopback
        number = int(port)
    except ValueError:
        is_loopback, number = False, 0
    if not is_loopback or not 0 < number < 65536:
        raise UsageError('write an address of this machine, for example "127.0.0.1:9247"')
    return Listen(host.strip("[]"), number)


def _command(value: object) -> tuple[str, ...]:
    try:
        words = shlex.split(value) if isinstance(value, str) else value
    except ValueError:
        words = None
    if not isinstance(words, list) or not all(isinstance(word, str) for word in words):
        raise UsageError('write a command, for example "/usr/local/bin/tell admins"')
    if words and (not words[0].startswith("/") or any("\0" in word for word in words)):
        raise UsageError("write the absolute path of a program, and its arguments")
    return tuple(words)


def _address(value: object) -> str:
    text = _text(value)
    if not text.isprintable() or text.startswith("-"):
        raise UsageError('write mail addresses, for example "root" or "admins@example.org"')
    return text


def _url(value: object) -> str:
    text = _text(value)
    if text and (not text.startswith(("http://", "https://")) or not text.isprintable()):
        raise UsageError('write a URL, for example "https://example.org/hooks/dedupd"')
    return text


def _summary(value: object) -> Calendar | None:
    schedule = parse_schedule(_text(value))
    if isinstance(schedule, Off):
        return None
    if not isinstance(schedule, Calendar):
        raise UsageError('write days and a time, for example "Mon 07:00 for 12h", or "off"')
    return schedule


def _uuid(value: object) -> str:
    text = _text(value)
    if not is_uuid(text):
        raise UsageError("write the UUID from the file volume.json of the volume")
    return text


def _cache(value: object) -> int:
    cache_bytes = size(value)
    if cache_bytes < CACHE_BYTES_MIN:
        raise UsageError(f"write at least {exact_size(CACHE_BYTES_MIN)}")
    return cache_bytes


def _options(value: object) -> MountOptions:
    options = parse_options(_text(value))
    if options.remount or options.snapshot or options.force or options.cache_bytes is not None:
        raise UsageError('write options of a mount, for example "noatime,nodev"')
    return options


@dataclass(frozen=True, slots=True)
class VolumeConfig:
    """The configuration of one volume. Paths are absolute."""

    path: Annotated[str, ValueFormat(_absolute)]
    mountpoint: Annotated[str, ValueFormat(_absolute)]
    cache_bytes: Annotated[int, ValueFormat(_cache, exact_size, "bytes")] = 64 * MIB
    options: Annotated[MountOptions, ValueFormat(_options)] = NO_OPTIONS
    uuid: Annotated[str, ValueFormat(_uuid)] = ""
    """The required uuid of the volume; empty to allow any volume. In a directory of a user, the
    same path may later lead to another volume."""


@dataclass(frozen=True, slots=True)
class ServiceConfig:
    """All keys, in the units that the program uses."""

    socket: Annotated[str, ValueFormat(_socket)] = ""
    group: Annotated[str, ValueFormat(_group)] = ""
    readers: Annotated[Readers, choice(Readers)] = Readers.GROUP
    listen: Annotated[Listen | None, ValueFormat(_listen)] = None
    jobs_max: Annotated[int, whole(1, 64)] = 1
    unmount_on_stop: Annotated[bool, SWITCH] = True
    guard_below: Annotated[bool, SWITCH] = False
    on_problem: Annotated[tuple[str, ...], ValueFormat(_command)] = ()
    mail_to: Annotated[str, ValueFormat(_address)] = ""
    sendmail: Annotated[str, ValueFormat(_absolute)] = SENDMAIL
    webhook: Annotated[str, ValueFormat(_url)] = ""
    notify_from: Annotated[Severity, choice(Severity)] = Severity.WARNING
    problem_calm_s: Annotated[float, DURATION] = 60.0
    summary: Annotated[Calendar | None, ValueFormat(_summary)] = None
    state: Annotated[str, ValueFormat(_absolute)] = ""
    volumes: tuple[VolumeConfig, ...] = ()

    @property
    def socket_path(self) -> str:
        return self.socket or default_socket()

    @property
    def state_path(self) -> str:
        """The directory with the saved state of notifications."""
        return self.state or default_state()

    @property
    def group_id(self) -> int | None:
        """The id of the group whose members may make changes; None if there is none."""
        return grp.getgrnam(self.group).gr_gid if self.group else None


SERVICE_KEYS = keys_of(ServiceConfig)
VOLUME_KEYS = keys_of(VolumeConfig)


def load_config(path: str) -> ServiceConfig:
    """Load the configuration at ``path``, with the volumes of ``volumes.d`` next to it.

    Raises ConfigurationError that names the file, the key, the value and the remedy.
    """
    config = parse_config(_read(path), path)
    volumes = list(config.volumes)
    directory = volumes_directory(path)
    try:
        names = sorted(name for name in os.listdir(directory) if name.endswith(".toml"))
    except FileNotFoundError:
        names = []
    except OSError as error:
        raise ConfigurationError(f"{directory}: cannot be read ({error.strerror})") from error
    for name in names:
        where = os.path.join(directory, name)
        volumes.append(parse_volume(read_table(_read(where), where, ConfigurationError), where))
    return replace(config, volumes=_distinct(volumes, path))


def volumes_directory(path: str) -> str:
    """Return the directory with one file per volume, next to the configuration at ``path``."""
    return os.path.join(os.path.dirname(os.path.abspath(path)), VOLUMES_DIRECTORY)


def _read(path: str) -> str:
    try:
        with open(path, "rb") as file:
            raw = file.read(FILE_BYTES_MAX + 1)
        if len(raw) > FILE_BYTES_MAX:
            raise ConfigurationError(f"{path}: longer than {exact_size(FILE_BYTES_MAX)}")
        return raw.decode()
    except FileNotFoundError:
        raise ConfigurationError(
            f"{path}: no such file; create it, even if empty, to serve the volumes of"
            f" {VOLUMES_DIRECTORY}/ with the defaults"
        ) from None
    except UnicodeDecodeError as error:
        raise ConfigurationError(f"{path}: not UTF-8 at byte {error.start}") from error
    except OSError as error:
        raise ConfigurationError(f"{path}: cannot be read ({error.strerror})") from error


def parse_config(text: str, where: str) -> ServiceConfig:
    """Parse the text of a configuration file. Raises ConfigurationError."""
    table = read_table(text, where, ConfigurationError)
    rows = table.pop("volume", [])
    if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
        raise ConfigurationError(f"{where}: volume: write each volume as a table [[volume]]")
    changes = parsed_table(SERVICE_KEYS, table, where, ConfigurationError)
    volumes = _distinct([parse_volume(row, where) for row in rows], where)
    return replace(ServiceConfig(), **changes, volumes=volumes)


def parse_volume(row: Mapping[str, Any], where: str) -> VolumeConfig:
    """Parse the table of one volume. Raises ConfigurationError."""
    values = parsed_table(VOLUME_KEYS, row, where, ConfigurationError)
    if "path" not in values:
        raise ConfigurationError(f'{where}: a volume has no path; write path = "/srv/share"')
    values.setdefault("mountpoint", values["path"])
    return VolumeConfig(**values)


def _distinct(volumes: list[VolumeConfig], where: str) -> tuple[VolumeConfig, ...]:
    """Merge equal volumes. Raises ConfigurationError if two volumes conflict."""
    kept: list[VolumeConfig] = []
    for one in volumes:
        same = next((at for at, other in enumerate(kept) if _are_same(one, other)), None)
        if same is not None:
            # `enable` has registered a volume that the administrator also lists.
            kept[same] = replace(one, uuid=one.uuid or kept[same].uuid)
            continue
        for other in kept:
            if one.path == other.path:
                raise ConfigurationError(
                    f"{where}: path = {brief(one.path)}: listed twice; remove one entry"
                )
            if one.mountpoint == other.mountpoint:
                raise ConfigurationError(
                    f"{where}: mountpoint = {brief(one.mountpoint)}: used by two volumes,"
                    f" {brief(other.path)} and {brief(one.path)}; change one mountpoint"
                )
        kept.append(one)
    return tuple(kept)


def _are_same(one: VolumeConfig, other: VolumeConfig) -> bool:
    """Return whether two entries are equal; an entry without a uuid matches any uuid."""
    is_any = not (one.uuid and other.uuid)
    return one == (replace(other, uuid=one.uuid) if is_any else other)
