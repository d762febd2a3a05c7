"""The kernel's offer of io_uring for mounts (Linux 6.14), and the mounts that use it."""

import os

from dedupd_core.volume.volume import Volume

OFFERED = "/sys/module/fuse/parameters/enable_uring"


def ring_offer() -> str:
    """Describe the kernel's offer."""
    try:
        with open(OFFERED) as file:
            is_on = file.read().strip() == "Y"
    except OSError:
        return "the kernel does not support io_uring for FUSE (Linux 6.14 does)"
    if is_on:
        return "io_uring is on for new mounts"
    return (
        "io_uring is off; to turn it on for new mounts, start the unit of the service, or run"
        f" `echo Y > {OFFERED}`"
    )


def way_of(volume: Volume) -> str:
    """Describe the transport of the requests of a volume's mount; empty without a mount.

    Raises DedupdError.
    """
    client = volume.mount_client()
    if client is None:
        return ""
    with client:
        status = client.call("status")
    if status.get("by_ring"):
        return ", by io_uring"
    number = status.get("ring_failure")
    why = "" if number is None else f": io_uring cannot be used ({os.strerror(number)})"
    return f", by /dev/fuse{why}"
