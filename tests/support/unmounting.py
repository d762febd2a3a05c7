"""Unmounting of file systems that tests have mounted."""

import subprocess
import time
from pathlib import Path


def unmount_soon(point: Path) -> None:
    """Unmount. Monitors use every mount for a moment, and the kernel releases the image of a loop
    device a moment after its unmount."""
    for _ in range(200):
        if subprocess.run(["umount", point], capture_output=True, check=False).returncode == 0:
            return
        time.sleep(0.05)
    subprocess.run(["umount", point], check=True)
