"""The table of jobs against the commands, the policy and the tasks."""

from dataclasses import fields
from importlib import import_module

import pytest

from dedupd_core.config.policy import Policy
from jobs.specs import SPECS, TASKS, JobSpec


@pytest.mark.parametrize("spec", SPECS, ids=lambda spec: spec.name)
def test_a_job_has_a_command_with_its_options(spec: JobSpec) -> None:
    command = import_module(f"dedupd.cli.run.{spec.name}").command
    options = {option.name: option for option in command.params}
    assert options.keys() >= (spec.known if spec.by_service else set())
    assert {name for name in spec.known & options.keys() if options[name].is_flag} == spec.flags


def test_each_task_has_its_schedule_in_the_policy() -> None:
    keys = {field.name for field in fields(Policy) if field.name.startswith("schedule_")}
    assert keys == {f"schedule_{name}" for name in TASKS}


def test_a_task_runs_a_job_with_options_that_it_has() -> None:
    jobs = {spec.name: spec for spec in SPECS}
    for task in TASKS.values():
        flags = {option.removeprefix("--").replace("-", "_") for option in task.options}
        assert flags <= jobs[task.job].flags
