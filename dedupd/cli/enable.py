"""``dedupd enable``: turn a directory into a volume."""

import os
from collections.abc import Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass
from typing import Any

import click

from dedupd.cli.common import PATH, answer, exits, force_option, json_option, message_of
from dedupd.service.client import ServiceClient
from dedupd.service.volume_registry import forget, register
from dedupd_core.config.policy import Policy, apply_values
from dedupd_core.config.profiles import PROFILES
from dedupd_core.errors import Busy, DedupdError, ServiceUnreachable
from dedupd_core.format.store_kinds import CLUSTER, StoreKind
from dedupd_core.format.volume_parameters import DEFAULT_PRESET, FINGERPRINTS, PRESETS
from dedupd_core.stores.registry import store_to_join
from dedupd_core.system.disk import Disk
from dedupd_core.volume.base_directory import is_volume
from dedupd_core.volume.enabling.enable import enable
from dedupd_core.volume.enabling.place import ONE_FILE_SYSTEM
from dedupd_core.volume.volume import Volume
from fuse_stub.mounts.mount_process import mount_in_background

profile_option = click.option(
    "--profile",
    type=click.Choice(list(PROFILES)),
    default="general",
    show_default=True,
    help="Preset for the policy.",
)
chunk_size_option = click.option(
    "--chunk-size",
    type=click.Choice(list(PRESETS)),
    default=DEFAULT_PRESET,
    show_default=True,
    help="Average size of a chunk; cannot be changed later.",
)
fingerprint_option = click.option(
    "--fingerprint",
    type=click.Choice(FINGERPRINTS),
    default=FINGERPRINTS[0],
    show_default=True,
    help="Cryptographic hash that identifies a chunk; cannot be changed later.",
)


@click.command("enable")
@click.argument("path", type=PATH)
@profile_option
@chunk_size_option
@fingerprint_option
@click.option(
    "--store",
    metavar="STORE",
    help="Use this shared store: a directory, or rados:POOL/NAME for a store in a Ceph cluster."
    " The store determines the settings for chunks.",
)
@click.option(
    "--min-age",
    metavar="DURATION",
    help="Minimum time since the last change of a file, for example 3d or 12h.",
)
@click.option("--min-size", metavar="SIZE", help="Skip files smaller than this, for example 32k.")
@click.option(
    "--no-mount",
    is_flag=True,
    help="Do not mount the volume. Users have no access until it is mounted.",
)
@force_option
@json_option
@exits
def command(
    path: str,
    profile: str,
    chunk_size: str,
    fingerprint: str,
    store: str | None,
    min_age: str | None,
    min_size: str | None,
    no_mount: bool,
    force: bool,
    as_json: bool,
) -> None:
    """Turn the directory PATH into a volume, and mount it.

    The entries of PATH move into PATH/.dedupd/data, and the volume is mounted over PATH. The files
    are unavailable for a moment. `dedupd disable PATH` reverses this.
    """
    values = chosen_values(profile, min_age, min_size)
    made = make_volume(
        path,
        values,
        chunk_size,
        fingerprint=fingerprint,
        store=store,
        no_mount=no_mount,
        force=force,
    )
    answer(as_json, made.value, "\n".join(made.lines))
    if made.problem:
        raise ServiceUnreachable(f"{path} is a volume, but is not mounted: {made.problem}")


def chosen_values(profile: str, min_age: str | None, min_size: str | None) -> dict[str, Any]:
    """Merge the values of a profile with those of the command line, which take precedence."""
    given = {"min_age": min_age, "min_size": min_size}
    return PROFILES[profile] | {key: value for key, value in given.items() if value is not None}


VALUES_OF: Mapping[StoreKind, Mapping[str, Any]] = {
    CLUSTER: {
        "schedule_gc": "daily 01:00 for 5h",
        "schedule_scrub": "daily 03:45 for 3h",
        **dict.fromkeys(
            (f"schedule_{name}" for name in ("reconcile", "compact", "full_scrub", "refine")),
            "off",
        ),
    }
}
"""Policy values for volumes on a kind of store; they turn off jobs that have no work on it."""


@dataclass(frozen=True, slots=True)
class NewVolume:
    """A new volume. ``problem`` is the reason why it could not be mounted, if it had to be."""

    value: dict[str, Any]
    lines: list[str]
    problem: str
    is_served: bool


def make_volume(
    path: str,
    values: dict[str, Any],
    chunk_size: str,
    *,
    fingerprint: str = FINGERPRINTS[0],
    store: str | None = None,
    no_mount: bool = False,
    force: bool = False,
) -> NewVolume:
    """Enable ``path`` with these policy values, and mount it. Raises PolicyError and the errors of
    :func:`enable`."""
    apply_values(Policy(), values, "command line")
    disk = Disk()
    with closing(store_to_join(store, disk)) as joined:
        parameters = enable(
            path,
            chunk_size=chunk_size,
            fingerprint=joined.fingerprint or fingerprint,
            policy_values={**values, **VALUES_OF.get(joined.kind, {})},
            disk=disk,
            force=force,
            shared=joined.shared,
        )
        if not joined.kind.has_containers:
            with Volume.open(path) as volume, volume.job_lock():
                joined.take_in(volume.base_fd, volume.root, parameters.uuid, disk)
    root = os.path.realpath(path)
    is_registered = register(root, parameters.uuid)
    if is_registered and not is_volume(root):
        forget(parameters.uuid)  # another call has disabled it since then
        raise Busy(
            f"{path}: `dedupd disable` was run for the new volume at the same time; run the"
            " command again"
        )
    problem = ""
    is_served = not no_mount and is_registered and _have_it_mounted()
    if not no_mount and not is_served:
        problem = _mounted_here(root)
    is_mounted = not no_mount and not problem
    value = {
        "path": path,
        "uuid": parameters.uuid,
        "attribute": parameters.attribute,
        "registered": is_registered,
        "mounted": is_mounted,
        "problem": problem,
        "one_file_system": ONE_FILE_SYSTEM,
    }
    return NewVolume(
        value, list(_lines(path, is_mounted, is_registered, is_served)), problem, is_served
    )


def _lines(path: str, is_mounted: bool, is_registered: bool, is_served: bool) -> Iterator[str]:
    """The lines of output for users."""
    if is_mounted:
        yield f"{path} is now a volume, and mounted. Users can access their files as before."
    else:
        yield f"{path} is now a volume. Users have no access until `dedupd mount {path}`."
    yield f"Backups: {ONE_FILE_SYSTEM}."
    if is_served:
        yield "The service optimizes it."
    elif is_registered:
        yield "The service manages it from its next start."
    else:
        yield f"`dedupd run optimize {path}` deduplicates the files that the policy selects."
        if is_mounted:
            yield (
                "After a restart of the machine, run `dedupd mount`, or use `dedupd serve`,"
                " which mounts it automatically."
            )


def _mounted_here(root: str) -> str:
    """Mount the volume from this process. Returns an error message, or an empty string."""
    try:
        mount_in_background(root, root)
    except (DedupdError, OSError) as error:
        return message_of(error)
    return ""


def _have_it_mounted() -> bool:
    """Make the service mount the volume. Returns whether the service is running."""
    client = ServiceClient.find()
    if client is None:
        return False
    try:
        client.post("/v1/reload")
    except ServiceUnreachable:
        return False  # it is stopping
    return True
