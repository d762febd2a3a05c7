"""``dedupd enable``: make a directory a volume."""

import os

import click

from dedupd.cli.common import PATH, answer, exits, json_option
from dedupd.config.policy import PROFILES, Policy, apply_values
from dedupd.errors import ServiceUnreachable
from dedupd.format.volume_parameters import FINGERPRINTS, PRESETS
from dedupd.service.client import ServiceClient
from dedupd.service.volume_registry import register
from dedupd.system.disk import Disk
from dedupd.volume.enable import enable


@click.command("enable")
@click.argument("path", type=PATH)
@click.option(
    "--profile",
    type=click.Choice(list(PROFILES)),
    default="general",
    show_default=True,
    help="What the policy is written for.",
)
@click.option(
    "--chunk-size",
    type=click.Choice(list(PRESETS)),
    default="64k",
    show_default=True,
    help="Average size of a chunk; can not be changed later.",
)
@click.option(
    "--fingerprint",
    type=click.Choice(FINGERPRINTS),
    default="blake3",
    show_default=True,
    help="Cryptographic hash that names a chunk; can not be changed later.",
)
@click.option(
    "--min-age",
    metavar="DURATION",
    help="How long a file must have been unchanged, like 3d or 12h.",
)
@click.option("--min-size", metavar="SIZE", help="Smaller files are left alone, like 32k.")
@json_option
@exits
def command(
    path: str,
    profile: str,
    chunk_size: str,
    fingerprint: str,
    min_age: str | None,
    min_size: str | None,
    as_json: bool,
) -> None:
    """Make the directory PATH a volume.

    Its entries move into PATH/.dedupd/data, which takes an instant; `dedupd mount PATH` shows
    them again in their place. `dedupd disable PATH` undoes it.
    """
    values = dict(PROFILES[profile])
    if min_age is not None:
        values["min_age"] = min_age
    if min_size is not None:
        values["min_size"] = min_size
    apply_values(Policy(), values, "command line")
    parameters = enable(
        path, chunk_size=chunk_size, fingerprint=fingerprint, policy_values=values, disk=Disk()
    )
    is_registered = register(os.path.realpath(path), parameters.uuid)
    is_served = is_registered and _have_it_mounted()
    if is_served:
        text = "The service shows its files, and optimizes them."
    elif is_registered:
        text = (
            "The service serves it from its next start on;\n"
            f"until then, `dedupd mount {path}` shows its files."
        )
    else:
        text = (
            f"Next: `dedupd mount {path}` shows its files;\n"
            f"`dedupd run optimize {path}` deduplicates those that the policy takes."
        )
    value = {
        "path": path,
        "uuid": parameters.uuid,
        "attribute": parameters.attribute,
        "registered": is_registered,
        "mounted": is_served,
    }
    answer(as_json, value, f"{path} is a volume now. {text}")


def _have_it_mounted() -> bool:
    """Tell the service, if it runs."""
    client = ServiceClient.find()
    if client is None:
        return False
    try:
        client.post("/v1/reload")
    except ServiceUnreachable:
        return False  # it is stopping
    return True
