"""A share of Samba, served for one test."""

import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.support.service import eventually


@contextmanager
def samba_share(share: Path, base: Path, port: int, options: str = "") -> Iterator[list[str]]:
    """The start of an ``smbclient`` command for a directory as a share, as root. ``options`` are
    lines of the share. Skips the test where Samba is not installed."""
    for program in ("smbd", "smbclient"):
        if shutil.which(program) is None:
            pytest.skip(f"{program} is not installed")
    for name in ("", "private", "locks", "state", "cache", "pid", "ncalrpc"):
        (base / name).mkdir()
    config = base / "smb.conf"
    config.write_text(
        f"""[global]
        server role = standalone server
        map to guest = Bad User
        guest account = root
        smb ports = {port}
        interfaces = lo
        bind interfaces only = yes
        disable netbios = yes
        load printers = no
        private dir = {base}/private
        lock directory = {base}/locks
        state directory = {base}/state
        cache directory = {base}/cache
        pid directory = {base}/pid
        ncalrpc dir = {base}/ncalrpc
        log file = {base}/log
        [share]
        path = {share}
        guest ok = yes
        read only = no
        {options}
        """
    )
    server = subprocess.Popen(
        ["smbd", "--foreground", "--no-process-group", f"--configfile={config}"],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,  # it ends its whole process group
    )
    client = ["smbclient", "//127.0.0.1/share", "-p", str(port), "-N", f"--configfile={config}"]
    try:

        def answers() -> bool:
            assert server.poll() is None, (base / "log").read_text()
            probe = subprocess.run([*client, "-c", "ls"], capture_output=True, check=False)
            return probe.returncode == 0

        eventually(answers, "the server answers")
        yield client
    finally:
        server.terminate()
        server.wait()
