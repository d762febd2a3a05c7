"""``dedupd drill``: simulate damage to a store and list the files it would cost."""

import random

import click

from dedupd.cli.common import PATH, answer, exits, job_run, json_option
from dedupd_core.units import counted, format_size
from jobs.backup.drill import DamagedStore, Drill, DrillReport


@click.command("drill")
@click.argument("path", type=PATH)
@click.option("--bits", default=10, show_default=True, help="Number of bits to flip.")
@click.option("--containers", default=0, show_default=True, help="Number of containers to lose.")
@click.option(
    "--seed", type=int, help="Seed of the random damage: the same number causes the same damage."
)
@json_option
@exits
def command(path: str, bits: int, containers: int, seed: int | None, as_json: bool) -> None:
    """Simulate damage to the store of the volume PATH, and list the files that this damage would
    destroy.

    Only a copy of the store is damaged. Users can keep working.
    """
    chosen = random.randrange(1 << 32) if seed is None else seed
    with DamagedStore.open(path) as volume, volume.job_lock(), job_run("drill") as run:
        job = Drill(volume, run, bits=bits, containers=containers, seed=chosen)
        report = job.run()
    answer(as_json, report.to_json(), _text(report))


def _text(report: DrillReport) -> str:
    lines = [
        f"{counted(report.bits, 'bit')} flipped and {counted(report.containers_lost, 'container')}"
        f" lost in a copy (--seed {report.seed}): {report.lost} of {counted(report.stubs, 'stub')}"
        f" lost, {format_size(report.lost_bytes)}; {report.healed} readable from second copies"
    ]
    return "\n".join([*lines, *(f"  {message}" for message in report.messages)])
