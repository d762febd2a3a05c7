"""What a scenario needs from the kernel that it runs on; without it the scenario is skipped."""

import subprocess
from typing import NoReturn

import pytest

NOT_IN_THIS_KERNEL = "not in this kernel: "


def lacks(feature: str) -> NoReturn:
    """Skip the scenario: the kernel does not have a feature."""
    pytest.skip(NOT_IN_THIS_KERNEL + feature)


def need_modules(*names: str) -> None:
    """Load modules of the kernel, or skip the scenario."""
    for name in names:
        done = subprocess.run(["modprobe", name], capture_output=True, text=True, check=False)
        if done.returncode:
            lacks(f"module {name} ({done.stderr.strip()})")
