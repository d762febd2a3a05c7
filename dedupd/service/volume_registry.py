"""The volumes that the service manages: one file per volume, next to its configuration.

``dedupd enable`` writes the file and ``dedupd disable`` removes it, if the service is installed:
then the directory ``volumes.d`` exists.
"""

import os

import tomlkit

from dedupd.service.config import (
    VolumeConfig,
    config_path,
    parse_config,
    volumes_directory,
)
from dedupd_core.errors import ConfigurationError
from dedupd_core.system.disk import Disk
from dedupd_core.system.files import opened
from dedupd_core.units import exact_size


def register(path: str, uuid: str) -> bool:
    """Add a volume, which the service mounts from its next start or reload on. Returns False if the
    service is not installed."""
    directory = volumes_directory(config_path())
    if not os.path.isdir(directory) or not os.access(directory, os.W_OK):
        return False
    text = volume_text(VolumeConfig(path, path, uuid=uuid))
    with opened(os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)) as fd:
        # An empty file, after a power failure, would prevent the start of the service.
        Disk().replace_file(fd, f"{uuid}.toml".encode(), text.encode(), mode=0o644)
    return True


def forget(uuid: str) -> bool:
    """Remove a volume that :func:`register` has added; return whether it was registered."""
    try:
        os.unlink(os.path.join(volumes_directory(config_path()), f"{uuid}.toml"))
    except (FileNotFoundError, NotADirectoryError, PermissionError):
        return False
    return True


def is_named(path: str) -> bool:
    """Return whether the configuration file of the administrator lists a volume."""
    try:
        with open(config_path(), encoding="utf-8") as file:
            config = parse_config(file.read(), config_path())
    except (OSError, UnicodeDecodeError, ConfigurationError):
        return False
    return any(volume.path == path for volume in config.volumes)


def unnamed(path: str) -> bool:
    """Remove a volume from the configuration file of the administrator, and keep the comments.
    Returns whether it was listed. Raises OSError."""
    where = config_path()
    if not is_named(path):
        return False
    with open(where, encoding="utf-8") as file:
        document = tomlkit.parse(file.read())
    tables = document["volume"]
    assert isinstance(tables, list)
    for at in [at for at, table in enumerate(tables) if os.path.normpath(table["path"]) == path]:
        del tables[at]
    if not tables:
        del document["volume"]
    directory, name = os.path.split(os.path.realpath(where))
    with opened(os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)) as fd:
        mode = os.stat(where).st_mode & 0o7777
        Disk().replace_file(fd, name.encode(), tomlkit.dumps(document).encode(), mode=mode)
    return True


def volume_text(volume: VolumeConfig) -> str:
    """Format a file of ``volumes.d``."""
    document = tomlkit.document()
    document.add(tomlkit.comment("A volume that the service mounts and keeps optimized."))
    document["path"] = volume.path
    if volume.mountpoint != volume.path:
        document["mountpoint"] = volume.mountpoint
    if volume.cache_bytes != VolumeConfig("", "").cache_bytes:
        document["cache"] = exact_size(volume.cache_bytes)
    if volume.options.text:
        document["options"] = volume.options.text
    if volume.uuid:
        document["uuid"] = volume.uuid
    return tomlkit.dumps(document)
