"""The read-ahead of the kernel on a mount."""

import os
from contextlib import suppress

READ_AHEAD_KIB = 1024
"""Read-ahead of the kernel, and the size of its requests. Its default is 128 KiB; a request costs
some 30 µs, for any length."""


def device_of(path: str) -> str:
    """Return the device of a mount, as ``major:minor``. Raises OSError."""
    device = os.stat(path).st_dev
    return f"{os.major(device)}:{os.minor(device)}"


def read_ahead_more(device: str) -> None:
    """Raise the read-ahead of a mount. Without the right to do that, the default stays."""
    path = f"/sys/class/bdi/{device}/read_ahead_kb"
    with suppress(OSError), open(path, "w") as file:
        file.write(str(READ_AHEAD_KIB))
