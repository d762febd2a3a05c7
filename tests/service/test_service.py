"""The service: mounts stay up, restarts are not seen, what is said to systemd is true."""

import errno
import os
import signal
import stat
import subprocess
import sys
import threading
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from dedupd_core.errors import ServiceUnreachable
from dedupd_core.format.container import Kind
from dedupd_core.units import KIB
from dedupd_core.volume.volume import Volume
from tests.support.lab import REPOSITORY, Lab, flip_bit, noise
from tests.support.service import (
    ServiceLab,
    answers,
    eventually,
    has_ended,
    is_alive,
    is_mounted,
    service_lab,
)

pytestmark = pytest.mark.root

CONTENT = noise(300 * KIB)


@pytest.fixture
def machine(tmp_path: Path) -> Iterator[ServiceLab]:
    with service_lab(tmp_path) as machine:
        yield machine


def filled(machine: ServiceLab, name: str = "volume") -> Lab:
    lab = machine.add_volume(name)
    lab.put("f", CONTENT)
    lab.optimize()
    return lab


def test_once_it_is_ready_every_volume_is_mounted(machine: ServiceLab) -> None:
    labs = [filled(machine, name) for name in ("one", "two")]
    machine.start()
    for lab in labs:
        assert (lab.root / "f").read_bytes() == CONTENT
    assert "STATUS=2 of 2 volumes mounted, 0 jobs" in machine.said[-1]


def test_the_program_itself_serves(machine: ServiceLab) -> None:
    lab = filled(machine)
    command = [sys.executable, "-m", "dedupd.cli.main", "serve", "--config", str(machine.config)]
    environment = {**os.environ, "PYTHONPATH": str(REPOSITORY)}
    with subprocess.Popen(command, env=environment, cwd="/", stderr=subprocess.PIPE) as program:
        machine.wait_until_it_listens()
        machine.mount_pid(lab)
        program.terminate()
        _, said = program.communicate()
    assert program.returncode == 0, said
    assert b"dedupd is ready: 1 of 1 volumes mounted" in said


def test_a_clean_stop_unmounts_and_leaves_no_process(machine: ServiceLab) -> None:
    lab = filled(machine)
    machine.start()
    pid = machine.mount_pid(lab)
    assert machine.stop() == 0
    assert not is_mounted(lab) and has_ended(pid)
    assert not machine.socket.exists()
    machine.wait_for_word("STOPPING=1")
    machine.verify()


def test_a_volume_in_use_stays_mounted_and_is_taken_over_by_the_next(machine: ServiceLab) -> None:
    lab = filled(machine)
    machine.start()
    pid = machine.mount_pid(lab)
    with open(lab.root / "f", "rb") as file:
        assert machine.stop() == 0
        assert file.read() == CONTENT
        machine.start()
        assert machine.mount_pid(lab) == pid


@pytest.mark.slow
def test_mounts_can_be_left_at_a_clean_stop(machine: ServiceLab) -> None:
    lab = filled(machine)
    machine.configure("unmount_on_stop = false\n")
    machine.start()
    pid = machine.mount_pid(lab)
    machine.stop()
    assert is_alive(pid) and (lab.root / "f").read_bytes() == CONTENT


def test_a_service_that_crashes_takes_no_mount_with_it(machine: ServiceLab) -> None:
    lab = filled(machine)
    machine.start()
    pid = machine.mount_pid(lab)
    machine.kill()
    assert (lab.root / "f").read_bytes() == CONTENT
    machine.start()
    assert machine.mount_pid(lab) == pid


def test_a_mount_that_dies_is_back_and_users_see_errors_until_then(machine: ServiceLab) -> None:
    lab = filled(machine)
    machine.start()
    pid = machine.mount_pid(lab)
    seen, done = set[str](), threading.Event()

    def look() -> None:
        while not done.is_set():
            try:
                seen.add(",".join(os.listdir(lab.root)))
            except OSError as error:
                seen.add(errno.errorcode[error.errno or 0])

    user = threading.Thread(target=look)
    user.start()
    try:
        os.kill(pid, signal.SIGKILL)
        # An adopted mount's process is not the service's child; its own is, and is reaped.
        eventually(lambda: not is_alive(pid), "the dead process is gone")
        eventually(lambda: machine.view(lab)["mount"]["restarts"] == 1, "the death was noticed")
        assert machine.mount_pid(lab) != pid
    finally:
        done.set()
        user.join()
    assert (lab.root / "f").read_bytes() == CONTENT
    # For an instant the directory below shows, which holds nothing that could be taken for a file.
    assert seen <= {"f", "ENOTCONN", "ECONNABORTED", "ECANCELED", ".dedupd"}


def test_a_dead_mount_of_the_past_is_replaced(machine: ServiceLab) -> None:
    lab = filled(machine)
    machine.start()
    pid = machine.mount_pid(lab)
    machine.kill()
    os.kill(pid, signal.SIGKILL)
    eventually(lambda: has_ended(pid), "it died")
    machine.start()
    assert (lab.root / "f").read_bytes() == CONTENT


def test_what_is_unmounted_by_the_command_stays_so_until_it_is_mounted(
    machine: ServiceLab,
) -> None:
    lab = filled(machine)
    machine.start()
    assert machine.run("umount", lab.root).returncode == 0
    assert machine.view(lab)["mount"]["state"] == "unmounted"
    assert not is_mounted(lab)
    assert machine.run("mount", lab.root).returncode == 0
    assert (lab.root / "f").read_bytes() == CONTENT


def test_a_mount_made_read_only_is_taken_over_and_the_next_one_has_the_service_s_options(
    machine: ServiceLab,
) -> None:
    lab = filled(machine)
    (machine.volumes_directory / "volume.toml").write_text(
        f'path = "{lab.root}"\noptions = "noexec"\n'
    )
    assert machine.run("mount", lab.root, "-o", "ro").returncode == 0
    machine.start()
    pid = machine.mount_pid(lab)
    with pytest.raises(OSError, match="Read-only"):
        (lab.root / "new").touch()
    subprocess.run(["umount", lab.root], check=True)
    eventually(lambda: is_mounted(lab) and machine.mount_pid(lab) != pid, "it is mounted again")
    (lab.root / "new").touch()
    assert os.statvfs(lab.root).f_flag & os.ST_NOEXEC
    other = machine.run("mount", lab.root, "-o", "noatime")
    assert other.returncode == 2 and 'options = "noatime"' in other.stderr
    assert machine.run("mount", lab.root, "-o", "noexec").returncode == 0


def test_what_concerns_a_whole_volume_is_not_asked_of_a_part_of_it(machine: ServiceLab) -> None:
    lab = machine.add_volume()
    (lab.data / "sub").mkdir()
    machine.start()
    for command in ("umount", "pause", "resume", "mount", "disable"):
        for part in ("sub", "nosuch"):
            refused = machine.run(command, lab.root / part)
            assert refused.returncode == 2, refused
            said = "is inside the volume" if part == "sub" else "no such directory"
            assert f"{lab.root / part}: {said}" in refused.stderr
    view = machine.view(lab)
    assert (view["mount"]["state"], view["paused"]) == ("mounted", False)


def test_a_policy_that_is_wrong_and_mended_is_known_at_once(machine: ServiceLab) -> None:
    lab = machine.add_volume()
    machine.start()
    with Volume.open(str(lab.root)) as volume:
        Path(volume.base, "policy.toml").write_text('min_size = "nonsense"\n')
    assert "nonsense" in machine.view(lab)["policy_problem"]
    assert any("nonsense" in text for text in machine.client.get("/v1/service")["problems"])
    assert machine.run("policy", lab.root, "min_size", "32k").returncode == 0
    assert machine.view(lab)["policy_problem"] == ""


def test_a_volume_that_cannot_be_mounted_says_why_and_hinders_no_other(
    machine: ServiceLab,
) -> None:
    good, bad = filled(machine, "good"), filled(machine, "bad")
    volume_file = bad.base / "volume.json"
    kept = volume_file.read_bytes()
    volume_file.write_bytes(b"{}")
    machine.start()
    assert (good.root / "f").read_bytes() == CONTENT
    assert "volume.json" in machine.view(bad)["mount"]["problem"]
    (problem,) = machine.client.get("/v1/service")["problems"]
    assert str(bad.root) in problem
    volume_file.write_bytes(kept)
    machine.mount_pid(bad)


def test_only_one_service_runs(machine: ServiceLab) -> None:
    machine.start()
    second = machine.run("serve", "--config", machine.config)
    assert second.returncode == 3
    assert "another service is already running" in second.stderr


def test_a_configuration_that_is_wrong_stops_the_start(machine: ServiceLab) -> None:
    machine.configure("jobs_max = 0\n")
    done = machine.run("serve", "--config", machine.config)
    assert done.returncode == 2
    assert f"{machine.config}: jobs_max = 0: write a whole number" in done.stderr


# --- reload -----------------------------------------------------------------------------------


def reload(machine: ServiceLab) -> None:
    assert machine.process is not None
    machine.process.send_signal(signal.SIGHUP)
    message = machine.wait_for_word("RELOADING=1")
    assert "MONOTONIC_USEC=" in message
    machine.wait_for_word("READY=1")


def test_a_reload_serves_new_volumes_and_lets_others_go(machine: ServiceLab) -> None:
    old = filled(machine, "old")
    machine.start()
    machine.mount_pid(old)
    new = filled(machine, "new")
    (machine.volumes_directory / "old.toml").unlink()
    reload(machine)
    machine.mount_pid(new)
    assert [view["path"] for view in machine.client.get("/v1/volumes")] == [str(new.root)]
    assert (old.root / "f").read_bytes() == CONTENT, "it stays mounted, by nobody's care"


def test_many_may_enable_at_once(machine: ServiceLab) -> None:
    """Each has the service read its configuration, and waits until all is mounted."""
    machine.start()
    failures: list[BaseException] = []

    def reload_too() -> None:
        try:
            machine.client.post("/v1/reload")
        except BaseException as error:
            failures.append(error)

    threads = []
    for number in range(3):
        lab = filled(machine, f"v{number}")
        threads.append(threading.Thread(target=reload_too))
        threads[-1].start()
        eventually(partial(answers, partial(machine.view, lab)), "the service knows it")
    for thread in threads:
        thread.join()
    assert not failures
    for lab in machine.volumes:
        machine.mount_pid(lab)


def test_a_volume_enabled_at_a_stop_waits_for_the_next_start(
    machine: ServiceLab,
) -> None:
    lab = filled(machine)
    machine.start()
    pid = machine.mount_pid(lab)
    with open(lab.root / "g", "wb") as file:
        file.write(CONTENT)
    os.kill(pid, signal.SIGSTOP)  # it takes its time to unmount
    try:
        assert machine.process is not None
        machine.process.send_signal(signal.SIGTERM)
        machine.wait_for_word("STOPPING=1")
        late = filled(machine, "late")
        with pytest.raises(ServiceUnreachable, match="the service is stopping"):
            machine.client.post("/v1/reload")
        machine.process.send_signal(signal.SIGHUP)
    finally:
        os.kill(pid, signal.SIGCONT)
    assert machine.process.wait() == 0, machine.log.read_text()[-4000:]
    machine.process = None
    assert not is_mounted(lab) and not is_mounted(late)


def test_a_volume_may_be_configured_by_a_link_to_it(machine: ServiceLab, tmp_path: Path) -> None:
    """Commands ask for what the link leads to."""
    lab = filled(machine)
    link = tmp_path / "link"
    link.symlink_to(lab.root)
    (machine.volumes_directory / "volume.toml").write_text(f'path = "{link}"\n')
    machine.start()
    for path in (lab.root, link):
        assert machine.json("status", path)["path"] == str(link)
    assert machine.run("umount", lab.root).returncode == 0
    assert machine.view(lab)["mount"]["state"] == "unmounted"
    assert not is_mounted(lab)


def test_a_wrong_configuration_changes_nothing_on_reload(machine: ServiceLab) -> None:
    lab = filled(machine)
    machine.start()
    machine.configure("jobs_max = many\n")
    reload(machine)
    eventually(lambda: "not valid TOML" in machine.log.read_text(), "the log says why")
    assert machine.view(lab)["mount"]["state"] == "mounted"


def test_enabling_a_directory_is_all_that_it_takes(machine: ServiceLab) -> None:
    machine.start()
    root = machine.base / "share"
    root.mkdir()
    (root / "f").write_bytes(CONTENT)
    enabled = machine.json("enable", "--force", root)
    try:
        assert enabled["mounted"] is True
        assert (root / "f").read_bytes() == CONTENT
        assert [view["path"] for view in machine.client.get("/v1/volumes")] == [str(root)]
    finally:
        assert machine.run("disable", root).returncode == 0
    assert os.listdir(root) == ["f"]
    assert machine.client.get("/v1/volumes") == []
    assert not list(machine.volumes_directory.iterdir())


def test_a_disabling_that_is_refused_takes_nothing_from_the_users(machine: ServiceLab) -> None:
    lab = filled(machine)
    machine.start()
    pid = machine.mount_pid(lab)
    (lab.root / "below").mkdir()
    for path, reason in ((lab.root, "--unoptimize"), (lab.root / "below", f"volume {lab.root}")):
        refused = machine.run("disable", path)
        assert refused.returncode == 2 and reason in refused.stderr
        assert machine.mount_pid(lab) == pid
        assert (lab.root / "f").read_bytes() == CONTENT


def test_a_disabling_that_fails_half_way_gives_the_users_their_files_back(
    machine: ServiceLab,
) -> None:
    lab = filled(machine)
    flip_bit(lab.container(Kind.CHUNKS), 1000)
    machine.start()
    pid = machine.mount_pid(lab)
    assert "could not be expanded" in machine.run("disable", "--unoptimize", lab.root).stderr
    assert machine.mount_pid(lab) != pid
    assert os.listdir(lab.root) == ["f"]


def test_disabling_is_for_good_also_while_the_service_is_down(machine: ServiceLab) -> None:
    root = machine.base / "share"
    root.mkdir()
    assert machine.run("enable", "--force", "--no-mount", root).returncode == 0
    assert len(list(machine.volumes_directory.iterdir())) == 1
    assert machine.run("disable", root).returncode == 0
    assert not list(machine.volumes_directory.iterdir())


# --- what systemd hears -----------------------------------------------------------------------


def test_the_watchdog_is_fed(machine: ServiceLab) -> None:
    machine.start(WATCHDOG_USEC="200000")
    for _ in range(3):
        machine.wait_for_word("WATCHDOG=1")


def test_the_socket_has_its_mode_from_the_first_moment_on(machine: ServiceLab) -> None:
    machine.configure('readers = "group"\n')
    machine.start()
    assert stat.S_IMODE(machine.socket.stat().st_mode) == 0o600
