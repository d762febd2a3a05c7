"""``dedupd drill``: damage a copy of the store, and show what would be lost."""

import random

import click

from dedupd.cli.common import PATH, answer, exits, job_run, json_option
from dedupd_core.units import counted, format_size
from jobs.backup.drill import DamagedStore, Drill, DrillReport


@click.command("drill")
@click.argument("path", type=PATH)
@click.option("--bits", default=10, show_default=True, help="How many bits to flip.")
@click.option("--containers", default=0, show_default=True, help="How many containers to lose.")
@click.option("--seed", type=int, help="The same damage for the same number.")
@json_option
@exits
def command(path: str, bits: int, containers: int, seed: int | None, as_json: bool) -> None:
    """Damage a copy of the store of the volume PATH, and show which files that would cost.

    The volume itself is only read, and users keep working.
    """
    chosen = random.randrange(1 << 32) if seed is None else seed
    with DamagedStore.open(path) as volume, volume.job_lock(), job_run("drill") as run:
        job = Drill(volume, run, bits=bits, containers=containers, seed=chosen)
        report = job.run()
    answer(as_json, report.to_json(), _text(report))


def _text(report: DrillReport) -> str:
    lines = [
        f"{counted(report.bits, 'bit')} flipped, {counted(report.containers_lost, 'container')}"
        f" lost, in a copy (--seed {report.seed}): of {counted(report.stubs, 'stub')}"
        f" {report.lost} would be lost, {format_size(report.lost_bytes)};"
        f" {report.healed} are read by second copies"
    ]
    return "\n".join([*lines, *(f"  {message}" for message in report.messages)])
