"""``dedupd policy``: read and set the policy."""

import click
import tomlkit

from dedupd.cli.common import PATH, exits, json_option, print_json
from dedupd.config.policy import KEYS
from dedupd.config.policy_file import set_in_text
from dedupd.errors import UsageError
from dedupd.system.paths import named
from dedupd.volume.volume import POLICY_FILE, Volume


@click.command("policy")
@click.argument("path", type=PATH)
@click.argument("key", required=False)
@click.argument("value", required=False)
@json_option
@exits
def command(path: str, key: str | None, value: str | None, as_json: bool) -> None:
    """Show the policy of the volume PATH, one KEY of it, or set KEY to VALUE."""
    if key is not None and key not in KEYS:
        raise UsageError(f"unknown policy key {key!r}; the keys are {', '.join(KEYS)}")
    with Volume.open(path) as volume:
        if key is not None and value is not None:
            text = set_in_text(volume.policy_text(), key, value, volume.policy_where)
            with named(volume.policy_where):
                volume.disk.replace_file(volume.base_fd, POLICY_FILE, text.encode())
        policy = volume.policy()
    shown = {
        name: KEYS[name].show(getattr(policy, KEYS[name].attribute))
        for name in ([key] if key is not None else KEYS)
    }
    if as_json:
        print_json(shown)
        return
    for name, text in shown.items():
        written = tomlkit.item(text).as_string()
        click.echo(f"{name} = {written}" + ("" if key else f"   # {KEYS[name].help}"))
