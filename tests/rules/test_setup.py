"""Setting up names packages before it installs any, and asks only where somebody can answer."""

import os
import pty
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

import pytest

import dedupd

SCRIPT = Path(dedupd.__file__).parents[1] / "scripts/setup.sh"
PACKAGE = "fuse3"


@dataclass(frozen=True)
class Machine:
    """A machine without FUSE's program, whose ``apt-get`` and ``sudo`` do nothing but note it."""

    directory: Path

    @property
    def calls(self) -> list[str]:
        log = self.directory / "calls"
        return log.read_text().splitlines() if log.exists() else []

    def set_up(
        self, *, root: bool, answer: str | None = None, yes: bool = False
    ) -> subprocess.CompletedProcess[str]:
        """Run the script, at a terminal with this answer, or without a terminal.

        It never gets past the packages, since the missing one stays missing.
        """
        programs = self.directory / "bin"
        _program(programs / "id", f"echo {0 if root else 1000}")
        environment = {"PATH": str(programs), "HOME": str(self.directory), "LC_ALL": "C.UTF-8"}
        if yes:
            environment["DEDUPD_SETUP_YES"] = "1"
        command = [str(self.directory / "scripts/setup.sh"), "run"]
        ours, terminal = pty.openpty()
        try:
            if answer is not None:
                os.write(ours, f"{answer}\n".encode())
            return subprocess.run(
                command,
                stdin=subprocess.DEVNULL if answer is None else terminal,
                capture_output=True,
                text=True,
                env=environment,
                timeout=60,
                check=False,
            )
        finally:
            os.close(ours)
            os.close(terminal)


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    programs = tmp_path / "bin"
    programs.mkdir()
    for name in ("bash", "cat", "cut", "dirname", "env", "sed", "sha256sum"):
        found = shutil.which(name)
        assert found is not None
        (programs / name).symlink_to(found)
    log = tmp_path / "calls"
    _program(programs / "apt-get", f'echo "apt-get $*" >>{log}')
    _program(programs / "sudo", f'echo "sudo $*" >>{log}')
    (tmp_path / "scripts").mkdir()
    text = SCRIPT.read_text()
    # Without what this machine has beside the PATH.
    assert text.count(":/usr/local/sbin:/usr/sbin:/sbin") == 1
    copy = tmp_path / "scripts/setup.sh"
    copy.write_text(text.replace(":/usr/local/sbin:/usr/sbin:/sbin", ""))
    copy.chmod(0o755)
    return Machine(tmp_path)


def _program(path: Path, text: str) -> None:
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)


def installed(calls: list[str]) -> bool:
    return any(" install " in call and PACKAGE in call.split() for call in calls)


def test_root_without_a_terminal_is_told_and_then_given_the_packages(machine: Machine) -> None:
    done = machine.set_up(root=True)
    assert f"  {PACKAGE} " in done.stdout
    assert machine.calls[0].startswith("apt-get update") and installed(machine.calls)
    assert not any(call.startswith("sudo") for call in machine.calls)


def test_a_user_without_a_terminal_is_told_the_one_line_to_run(machine: Machine) -> None:
    done = machine.set_up(root=False)
    assert machine.calls == []
    assert done.returncode == 1
    assert "nothing was installed" in done.stderr
    [line] = [line.strip() for line in done.stdout.splitlines() if "apt-get" in line]
    assert line.startswith("sudo apt-get update && sudo apt-get install -y ")
    subprocess.run(
        ["/bin/sh", "-c", line], env={"PATH": str(machine.directory / "bin")}, check=True
    )
    assert installed(machine.calls)


def test_a_user_who_said_yes_in_advance_is_not_asked(machine: Machine) -> None:
    machine.set_up(root=False, yes=True)
    assert machine.calls[0].startswith("sudo apt-get update") and installed(machine.calls)


@pytest.mark.parametrize("root", [True, False])
def test_at_a_terminal_the_answer_counts(machine: Machine, root: bool) -> None:
    refused = machine.set_up(root=root, answer="n")
    assert refused.returncode == 1 and machine.calls == []
    machine.set_up(root=root, answer="y")
    assert installed(machine.calls)
    assert machine.calls[0].startswith("sudo" if not root else "apt-get")


def test_what_was_installed_and_is_still_missing_ends_the_setup(machine: Machine) -> None:
    done = machine.set_up(root=True)
    assert done.returncode == 1
    assert "still missing" in done.stderr
