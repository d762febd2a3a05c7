"""The rights of the threads of a mount process, as the kernel shows them."""

import re
from contextlib import suppress
from pathlib import Path

READING = {"CAP_SYS_ADMIN": 21, "CAP_DAC_READ_SEARCH": 2, "CAP_SYS_NICE": 23}
WRITING = READING | {
    "CAP_CHOWN": 0,
    "CAP_DAC_OVERRIDE": 1,
    "CAP_FOWNER": 3,
    "CAP_FSETID": 4,
    "CAP_SETUID": 7,
    "CAP_LINUX_IMMUTABLE": 9,
    "CAP_MKNOD": 27,
    "CAP_SETFCAP": 31,
}
FILTERED = "2"
"""``SECCOMP_MODE_FILTER``."""


def rights_of(status: Path) -> dict[str, str]:
    names = "|".join(("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb", "NoNewPrivs", "Seccomp"))
    return dict(re.findall(rf"^({names}):\t(\S+)$", status.read_text(), re.MULTILINE))


def rights_with(capabilities: dict[str, int]) -> dict[str, str]:
    """Those of a mount that this process starts: nothing that it has not itself."""
    own = int(rights_of(Path("/proc/self/status"))["CapPrm"], 16)
    mask = f"{sum(1 << number for number in capabilities.values()) & own:016x}"
    return {
        "CapInh": f"{0:016x}",
        "CapPrm": mask,
        "CapEff": mask,
        "CapBnd": mask,
        "CapAmb": f"{0:016x}",
        "NoNewPrivs": "1",
        "Seccomp": FILTERED,
    }


def threads_of(pid: int) -> list[Path]:
    return list(Path(f"/proc/{pid}/task").iterdir())


def assert_bounded(pid: int, capabilities: dict[str, int]) -> None:
    """All threads of a mount process have these capabilities, and have given up the rest."""
    expected = rights_with(capabilities)
    for thread in threads_of(pid):
        with suppress(FileNotFoundError, ProcessLookupError):  # it has ended
            name = (thread / "comm").read_text()
            assert rights_of(thread / "status") == expected, name
