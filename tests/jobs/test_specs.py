"""The table of jobs against the commands, the policy and the tasks."""

from dataclasses import fields
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from dedupd_core.config.policy import Policy
from dedupd_core.errors import UsageError
from dedupd_core.format.store_kinds import CLUSTER, KINDS, StoreKind
from jobs.backup.intake import Reception
from jobs.frame.job import Job
from jobs.specs import LEAVING, RECEPTION, SPECS, TASKS, JobSpec, Strategies, job_of
from tests.support.lab import new_lab


@pytest.mark.parametrize("spec", SPECS, ids=lambda spec: spec.name)
def test_a_job_has_a_command_with_its_options(spec: JobSpec) -> None:
    command = import_module(f"dedupd.cli.run.{spec.name}").command
    options = {option.name: option for option in command.params}
    assert options.keys() >= (spec.known if spec.by_service else set())
    assert {name for name in spec.known & options.keys() if options[name].is_flag} == spec.flags


def _named(strategies: Strategies, kind: StoreKind) -> Any:
    module, _, attribute = strategies.named(kind).partition(":")
    return getattr(import_module(module), attribute) if module else None


@pytest.mark.parametrize("spec", SPECS, ids=lambda spec: spec.name)
@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
def test_what_a_job_is_on_a_kind_of_store_can_be_there(spec: JobSpec, kind: StoreKind) -> None:
    found = _named(spec.classes, kind)
    assert (found is not None) == spec.has_work_in(kind)
    if found is not None:
        assert issubclass(found, Job)
        assert kind.has_containers or not found.needs_containers


def test_other_work_has_its_function_on_each_kind_of_store() -> None:
    assert all(issubclass(_named(RECEPTION, kind), Reception) for kind in KINDS)
    assert callable(_named(LEAVING, CLUSTER))


def test_a_job_without_work_on_the_store_of_a_volume_says_what_helps(tmp_path: Path) -> None:
    with new_lab(tmp_path / "volume").opened() as volume:
        with pytest.raises(UsageError, match="audit has nothing to do; `dedupd run scrub`"):
            job_of("audit", volume)
        assert job_of("gc", volume).__name__ == "Gc"


def test_each_task_has_its_schedule_in_the_policy() -> None:
    keys = {field.name for field in fields(Policy) if field.name.startswith("schedule_")}
    assert keys == {f"schedule_{name}" for name in TASKS}


def test_a_task_runs_a_job_with_options_that_it_has() -> None:
    jobs = {spec.name: spec for spec in SPECS}
    for task in TASKS.values():
        flags = {option.removeprefix("--").replace("-", "_") for option in task.options}
        assert flags <= jobs[task.job].flags
