"""Jobs of the service: by schedule and by hand, held, stopped, remembered."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from itertools import pairwise
from pathlib import Path

import pytest

from dedupd_core.format.container import Kind
from dedupd_core.units import KIB, MIB
from dedupd_core.volume.volume import Volume
from tests.support.lab import REPOSITORY, Lab, flip_bit, noise
from tests.support.service import QUIET_POLICY, ServiceLab, eventually, has_ended, service_lab

pytestmark = pytest.mark.root

SLOW_RATE = "1k"
"""At which the first MiB of a volume alone takes a quarter of an hour: no test waits for that."""

SLOW_SCRUB = {"full": True, "rate": SLOW_RATE}
"""A job that does not end by itself while a test looks."""


@pytest.fixture
def machine(tmp_path: Path) -> Iterator[ServiceLab]:
    with service_lab(tmp_path) as machine:
        yield machine


def filled(machine: ServiceLab, name: str = "volume") -> Lab:
    lab = machine.add_volume(name)
    for number in range(4):
        lab.put(f"f{number}", noise(1 * MIB, number // 2))
    return lab


def outcomes(machine: ServiceLab, lab: Lab) -> list[tuple[str, str]]:
    runs = machine.client.get("/v1/jobs", path=lab.root)["history"]
    return [(run["job"], run["outcome"]) for run in runs]


def test_a_job_runs_through_the_service_and_reports_as_in_the_foreground(
    machine: ServiceLab,
) -> None:
    lab = filled(machine)
    machine.start()
    report = machine.json("run", "optimize", lab.root, "--wait")
    assert (report["files_optimized"], report["outcome"]) == (4, "done")
    assert report["sums"]["duplicate_bytes"] == 2 * MIB
    assert "4 stubs use" in machine.run("run", "gc", lab.root, "--wait").stdout
    assert outcomes(machine, lab) == [("gc", "done"), ("optimize", "done")]
    shown = machine.run("jobs", lab.root).stdout
    assert "optimize" in shown and "gc" in shown
    savings = eventually(lambda: machine.view(lab)["savings"], "what was saved is measured")
    assert savings["files_optimized"] == 4 and savings["saved_bytes"] > 1 * MIB
    assert "4, 4 of them optimized" in machine.run("status", lab.root).stdout
    assert machine.stop() == 0
    machine.verify()


@pytest.mark.slow
def test_a_part_of_the_tree_can_be_optimized(machine: ServiceLab) -> None:
    lab = machine.add_volume()
    lab.put("in/f", noise(100 * KIB))
    lab.put("out/f", noise(100 * KIB))
    machine.start()
    report = machine.json("run", "optimize", lab.root / "in", "--wait")
    assert report["files_optimized"] == 1


def test_what_the_schedule_says_runs_by_itself_once(machine: ServiceLab) -> None:
    lab = filled(machine)
    often = QUIET_POLICY.replace('background = "off"', 'background = "every 1h"')
    # What runs by schedule gives way to whatever else the machine of a test does.
    lab.set_policy(f"{often}stop_when_busy = false\n")
    machine.start()
    task = eventually(lambda: machine.view(lab)["tasks"]["background"]["last"], "it has run")
    assert task["completed"] is True
    assert outcomes(machine, lab) == [("optimize", "done")]
    # The next service knows that it ran.
    machine.stop()
    machine.start()
    assert machine.view(lab)["tasks"]["background"]["last"] == task


def test_a_job_is_paused_and_goes_on(machine: ServiceLab) -> None:
    lab = filled(machine)
    lab.optimize()
    machine.start()
    job_id = machine.submit("scrub", lab, **SLOW_SCRUB)
    machine.job_in(lab, "running")
    assert machine.run("pause", lab.root).returncode == 0
    eventually(lambda: machine.view(lab)["job"]["waits_for"] == "paused manually", "it is paused")
    assert machine.job_in(lab, "held")["id"] == job_id
    assert "paused manually" in machine.run("status", lab.root).stdout
    assert machine.run("resume", lab.root).returncode == 0
    machine.job_in(lab, "running")
    assert machine.run("cancel", job_id).returncode == 0
    assert machine.ended(job_id)["outcome"] == "stopped: cancelled"


@pytest.mark.slow
def test_on_a_paused_volume_nothing_starts_not_even_after_a_restart(machine: ServiceLab) -> None:
    lab = filled(machine)
    machine.start()
    machine.client.act(str(lab.root), "pause")
    machine.stop()
    machine.start()
    assert machine.view(lab)["paused"] is True
    job_id = machine.submit("gc", lab)
    assert machine.client.job(job_id, 1)["state"] == "waiting"
    assert f"`dedupd resume {lab.root}`" in machine.run("run", "scrub", lab.root).stdout
    machine.client.act(str(lab.root), "resume")
    assert machine.ended(job_id)["outcome"] == "done"


def test_a_job_that_is_refused_says_why_once(machine: ServiceLab) -> None:
    lab = filled(machine)
    machine.start()
    missing = lab.root / "mistyped"
    done = machine.run("run", "optimize", "--wait", missing)
    assert done.returncode == 2 and f"{missing}: no such file" in done.stderr
    assert outcomes(machine, lab)[0] == ("optimize", f"{missing}: no such file or directory")


def test_damage_that_is_left_is_a_problem_until_it_is_repaired(machine: ServiceLab) -> None:
    lab = filled(machine)
    lab.optimize()
    container = lab.container(Kind.CHUNKS)
    flip_bit(container, 1000)
    machine.start()
    done = machine.run("run", "scrub", "--full", "--wait", lab.root)
    assert done.returncode == 4 and "is optimized: 1 record" in done.stdout
    (problem,) = eventually(lambda: machine.client.get("/v1/service")["problems"], "it is said")
    assert f"{lab.root}: the store has 1 damaged record" in problem
    status = machine.run("status", lab.root)
    assert "quarantined" in status.stdout and "1 damaged record" in status.stderr
    assert machine.run("umount", lab.root).returncode == 0
    flip_bit(container, 1000)
    assert machine.run("mount", lab.root).returncode == 0
    assert machine.run("run", "scrub", "--full", "--wait", lab.root).returncode == 0
    eventually(lambda: machine.client.get("/v1/service")["problems"] == [], "it is over")


def test_a_client_that_stops_waiting_learns_that_the_job_goes_on(machine: ServiceLab) -> None:
    lab = filled(machine)
    lab.optimize()
    machine.start()
    command = [sys.executable, "-m", "dedupd.cli.main", "run", "scrub", "--full"]
    environment = {**os.environ, **machine.environment, "PYTHONPATH": str(REPOSITORY)}
    with subprocess.Popen(
        [*command, f"--rate={SLOW_RATE}", "--wait", lab.root],
        env=environment,
        stderr=subprocess.PIPE,
        text=True,
    ) as waiting:
        job_id = machine.job_in(lab, "running")["id"]
        waiting.send_signal(signal.SIGINT)
        _, said = waiting.communicate()
    assert f"{job_id} continues in the service; to stop it, run `dedupd cancel {job_id}`" in said
    assert machine.job_in(lab, "running")["id"] == job_id
    assert machine.run("cancel", job_id).returncode == 0


def test_a_job_for_a_volume_that_was_unmounted_says_what_it_waits_for(machine: ServiceLab) -> None:
    lab = filled(machine)
    machine.start()
    assert machine.run("umount", lab.root).returncode == 0
    assert f"`dedupd mount {lab.root}`" in machine.run("run", "gc", lab.root).stdout


def test_a_client_that_waits_for_a_job_learns_that_its_volume_is_gone(machine: ServiceLab) -> None:
    lab = filled(machine)
    machine.start()
    machine.client.act(str(lab.root), "pause")
    job = machine.submit("gc", lab)
    for file in machine.volumes_directory.iterdir():
        file.unlink()
    machine.client.post("/v1/reload")
    assert machine.ended(job)["outcome"] == "stopped: its volume was removed from the configuration"


def test_what_is_asked_for_takes_the_place_of_a_scheduled_job(machine: ServiceLab) -> None:
    lab = filled(machine)
    lab.optimize()
    lab.set_policy(
        QUIET_POLICY.replace('full_scrub = "off"', 'full_scrub = "every 2s"')
        + f'scrub_rate = "{SLOW_RATE}"\n'
    )
    machine.start()
    # It gives way to others, so on a busy machine it may be held.
    assert eventually(lambda: machine.view(lab)["job"], "it has begun")["task"] == "full_scrub"
    assert machine.ended(machine.submit("gc", lab))["outcome"] == "done"
    stopped = eventually(lambda: machine.view(lab)["tasks"]["full_scrub"]["last"], "it stopped")
    assert (stopped["completed"], stopped["failures"]) == (False, 0)


@pytest.mark.slow
def test_jobs_of_one_volume_run_one_after_the_other(machine: ServiceLab) -> None:
    lab = filled(machine)
    machine.start()
    ids = [machine.submit(job, lab) for job in ("optimize", "gc", "compact")]
    jobs = [machine.ended(job_id) for job_id in ids]
    for before, after in pairwise(jobs):
        assert before["finished_s"] <= after["started_s"]
    assert [job["exit_status"] for job in jobs] == [0, 0, 0]


def test_a_stop_of_the_service_lets_jobs_save_their_progress(machine: ServiceLab) -> None:
    lab = filled(machine)
    lab.optimize()
    machine.start()
    machine.submit("scrub", lab, **SLOW_SCRUB)
    machine.job_in(lab, "running")
    assert machine.stop() == 0
    with lab.opened() as volume:
        assert_unlocked(volume)
    machine.verify()


def test_a_job_does_not_outlive_a_service_that_is_killed(machine: ServiceLab) -> None:
    lab = filled(machine)
    lab.optimize()
    machine.start()
    machine.submit("scrub", lab, **SLOW_SCRUB)
    machine.job_in(lab, "running")
    job = process_of(machine, "scrub")
    machine.kill()
    eventually(lambda: has_ended(job), "the job has ended")
    machine.start()
    assert machine.ended(machine.submit("gc", lab))["outcome"] == "done"


@pytest.mark.slow
def test_a_job_that_is_killed_has_failed_and_is_in_the_history(machine: ServiceLab) -> None:
    lab = filled(machine)
    lab.optimize()
    machine.start()
    job_id = machine.submit("scrub", lab, **SLOW_SCRUB)
    machine.job_in(lab, "running")
    pid = process_of(machine, "scrub")
    subprocess.run(["kill", f"-{signal.SIGKILL.value}", str(pid)], check=True)
    job = machine.ended(job_id)
    assert job["outcome"] == "killed by signal 9"
    assert outcomes(machine, lab)[0] == ("scrub", "killed by signal 9")


@pytest.mark.slow
def test_a_volume_is_unmounted_once_its_job_has_ended(machine: ServiceLab) -> None:
    lab = filled(machine)
    lab.optimize()
    machine.start()
    job_id = machine.submit("scrub", lab, **SLOW_SCRUB)
    machine.job_in(lab, "running")
    assert machine.run("umount", lab.root).returncode == 0
    assert machine.client.job(job_id)["outcome"] == "stopped: the volume is being unmounted"


def test_a_policy_that_cannot_be_read_does_not_stop_jobs_by_hand(
    machine: ServiceLab,
) -> None:
    lab = filled(machine)
    machine.start()
    with lab.opened() as volume:
        Path(volume.base, "policy.toml").write_text("min_age = 3\n")
    failed = machine.ended(machine.submit("optimize", lab))
    assert failed["exit_status"] == 2 and "min_age = 3" in failed["outcome"]
    assert machine.ended(machine.submit("gc", lab))["outcome"] == "done"
    (problem,) = machine.client.get("/v1/service")["problems"]
    assert "min_age = 3" in problem


def assert_unlocked(volume: Volume) -> None:
    with volume.job_lock():
        pass


def process_of(machine: ServiceLab, job: str) -> int:
    """The process of a job that runs, once there is one: the job runs a little earlier."""
    assert machine.process is not None
    parent = machine.process.pid

    def probe() -> int | None:
        for pid in Path(f"/proc/{parent}/task/{parent}/children").read_text().split():
            with suppress(FileNotFoundError, ProcessLookupError):
                if job in Path(f"/proc/{pid}/cmdline").read_text().split("\0"):
                    return int(pid)
        return None

    return eventually(probe, f"{job} has a process")


def test_a_run_of_the_service_keeps_to_the_limits_that_it_was_given(machine: ServiceLab) -> None:
    lab = filled(machine)
    lab.set_policy(f'{QUIET_POLICY}\nmin_age = "9d"\n'.replace('min_age = "0s"\n', ""))
    machine.start()
    options = ("--min-age", "0s", "--cores", "1", "--memory", "300M", "--for", "1h", "--rate", "1G")
    assert machine.json("run", "optimize", *options, lab.root, "--wait")["files_optimized"] > 0
    (job,) = [run for run in machine.client.jobs(9)["history"] if run["job"] == "optimize"]
    assert job["outcome"] == "done"
    refused = machine.run("run", "gc", "--min-age", "0s", lab.root)
    assert refused.returncode == 2


def test_a_job_whose_time_is_over_has_not_failed(machine: ServiceLab) -> None:
    lab = filled(machine)
    lab.optimize()
    machine.start()
    job = machine.submit("scrub", lab, **SLOW_SCRUB, **{"for": "1s"})
    assert machine.ended(job)["outcome"] == "stopped"
    assert machine.client.get("/v1/service")["problems"] == []


def test_all_jobs_end_at_once(machine: ServiceLab) -> None:
    lab = filled(machine)
    lab.optimize()
    machine.start()
    jobs = [machine.submit("scrub", lab, **SLOW_SCRUB), machine.submit("gc", lab)]
    machine.job_in(lab, "running")
    assert machine.run("cancel").returncode == 2
    assert len(machine.json("cancel", "--all")) == 2
    assert {machine.ended(job)["outcome"] for job in jobs} == {"stopped: cancelled"}
    assert "no job is running or queued" in machine.run("cancel", "--all").stdout
