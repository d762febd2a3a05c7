"""Whether the kernel offers new mounts that their requests come by io_uring (Linux 6.14)."""

OFFERED = "/sys/module/fuse/parameters/enable_uring"


def ring_offer() -> str:
    """What the kernel offers, in words."""
    try:
        with open(OFFERED) as file:
            is_on = file.read().strip() == "Y"
    except OSError:
        return "the kernel has no io_uring for it (Linux 6.14 has)"
    if is_on:
        return "io_uring is on for mounts that begin now"
    return f"io_uring is off; for mounts that begin after it: `echo Y > {OFFERED}`"
