"""``dedupd policy``: show and change the policy."""

import shutil
import sys
import textwrap
from collections.abc import Callable
from typing import Any, NamedTuple

import click
import tomlkit

from dedupd.cli.common import PATH, answer, exits, json_option, print_json
from dedupd_core.config.policy import (
    ADVANCED,
    KEYS,
    RULES,
    TABLES,
    Policy,
    apply_values,
    parse_policy,
)
from dedupd_core.config.policy_file import reset_in_text, set_in_text, wrong_keys
from dedupd_core.errors import PolicyError, UsageError
from dedupd_core.system.paths import named, refuse_part, show_text
from dedupd_core.volume.domains import require_domains
from dedupd_core.volume.volume import POLICY_FILE, Volume

COUNTS = "jobs that start from now on use it"

DOMAINS_STAY = (
    "Stored files still share what they share now. A file moves to its domain when it is"
    " optimized again. To do that now, run `dedupd run unoptimize`, then `dedupd run optimize`."
)


@click.command("policy")
@click.argument("path", type=PATH)
@click.argument("key", required=False)
@click.argument("value", required=False)
@click.option("--reset", "reset", metavar="KEY", help="Reset KEY to its default.")
@click.option(
    "--edit",
    is_flag=True,
    help="Open the policy file in an editor. The command saves the"
    " changes only if the file is valid.",
)
@click.option(
    "--why",
    type=PATH,
    metavar="FILE",
    help="Show which rule applies to FILE, and whether FILE is optimized.",
)
@click.option("--all", "shows_all", is_flag=True, help="Show the advanced keys, too.")
@json_option
@exits
def command(
    path: str,
    key: str | None,
    value: str | None,
    reset: str | None,
    edit: bool,
    why: str | None,
    shows_all: bool,
    as_json: bool,
) -> None:
    """Show the policy of the volume PATH, show one KEY of it, or set KEY to VALUE.

    Most volumes need about twelve keys. The command shows these keys, and all keys whose value
    differs from the default. `--all` shows every key, and who needs the advanced ones. `--json` has
    all keys.

    A policy applies to the entire volume. Its key `exclude` excludes parts. The tables `[[rule]]`
    in the policy file set other values for parts of the volume. To change them, use --edit. To
    repair an invalid policy file, set the KEY to a valid VALUE, or use --reset or --edit.
    """
    if (key is not None) + (reset is not None) + edit + (why is not None) > 1:
        raise UsageError("KEY, --reset, --edit and --why exclude each other; use one of them")
    if key is not None and key not in KEYS:
        raise UsageError(f"unknown policy key {key!r}; use one of {', '.join(KEYS)}")
    with Volume.open(path) as volume:
        refuse_part(path, (volume.root,), "change the policy of")
        where = volume.policy_where
        if why is not None:
            _explain(volume, why, as_json)
        elif edit:
            _tell(volume, _edited(volume), as_json)
        elif reset is not None:
            _tell(volume, saved(volume, lambda text: reset_in_text(text, reset, where)), as_json)
        elif key is not None and value is not None:
            change = saved(volume, lambda text: set_in_text(text, key, value, where))
            _tell(volume, change, as_json, always=key)
        else:
            _show(volume.policy(), key, shows_all, as_json)


class _Change(NamedTuple):
    """The text of a policy file before and after a change."""

    before: str
    after: str


def _explain(volume: Volume, path: str, as_json: bool) -> None:
    """Print how the policy handles a file, and which rule decides."""
    from jobs.tree.explanation import explain_file

    other, below = Volume.locate_existing(path)
    with other, named(path):
        if other.parameters.uuid != volume.parameters.uuid:
            raise UsageError(f"{path}: is in another volume, {other.root}")
        found = explain_file(other, other.policy(), below)
    if found is None:
        raise UsageError(f"{path}: not a regular file; name a file")
    text = "\n".join(show_text(line) for line in found.lines())
    answer(as_json, {**found.to_json(), "path": path}, text)


def saved(volume: Volume, change: Callable[[str], str]) -> _Change:
    """Change the policy file. Raises PolicyError, OSError."""
    before = volume.policy_text()
    after = change(before)
    try:
        policy = parse_policy(after, volume.policy_where)
    except PolicyError:
        pass  # some other key is already invalid; it can be repaired later
    else:
        require_domains(volume, policy)
    with named(volume.policy_where):
        volume.disk.replace_file(volume.base_fd, POLICY_FILE, after.encode())
    return _Change(before, after)


def _edited(volume: Volume) -> _Change:
    """Open the file in an editor until it is valid or the user cancels."""
    before = text = volume.policy_text()
    while True:
        edited = click.edit(text, extension=".toml", require_save=False)
        if edited is None or edited == before:
            raise UsageError(f"{volume.policy_where}: not changed")
        text = edited
        try:
            parse_policy(text, volume.policy_where)
            break
        except PolicyError as error:
            click.echo(f"dedupd: {error}", err=True)
            if not sys.stdin.isatty() or not click.confirm("Edit it again?", default=True):
                raise UsageError(f"{volume.policy_where}: not changed") from None
    if volume.policy_text() != before:
        raise UsageError(
            f"{volume.policy_where}: another program changed the file at the same time; check"
            " it, then run the command again"
        )
    return saved(volume, lambda _: text)


def _values(text: str, where: str) -> dict[str, Any]:
    """Return the value of each key: valid values as they are shown, invalid values as written."""
    try:
        table = tomlkit.parse(text).unwrap()
    except ValueError:
        return {}
    wrong = wrong_keys(text, where)
    valid = {name: value for name, value in table.items() if name not in wrong}
    shown = _shown(apply_values(Policy(), valid, where))
    return {**shown, **{name: table[name] for name in wrong}}


def _shown(policy: Policy) -> dict[str, Any]:
    return {name: key.form.show(getattr(policy, key.attribute)) for name, key in TABLES.items()}


def _tell(volume: Volume, change: _Change, as_json: bool, always: str | None = None) -> None:
    """Print the keys that changed, and those that are still invalid."""
    where = volume.policy_where
    before, after = _values(change.before, where), _values(change.after, where)
    names = [
        name
        for name in {**before, **after}
        if name == always or before.get(name) != after.get(name)
    ]
    wrong = wrong_keys(change.after, where)
    value = {
        "volume": volume.root,
        "changed": {name: {"old": before.get(name), "new": after.get(name)} for name in names},
        "counts": COUNTS,
        "wrong": wrong,
    }
    lines = [
        f"{name}: {_written(before.get(name))} -> {_written(after.get(name))}" for name in names
    ] or ["no value changes"]
    lines.append(f"This is the policy of the entire volume {volume.root}; {COUNTS}.")
    if "dedup_domain" in names:
        lines.append(DOMAINS_STAY)
    lines += [f"Still invalid: {name}; to reset it, use `--reset {name}`." for name in wrong]
    answer(as_json, value, "\n".join(lines))


def _written(value: object) -> str:
    return "nothing" if value is None else tomlkit.item(value).as_string()


def _show(policy: Policy, key: str | None, shows_all: bool, as_json: bool) -> None:
    values = _shown(policy)
    if key is not None:
        values = {key: values[key]}
    if as_json:
        print_json(values)
        return
    if key is not None:
        click.echo(_line(key, values[key], ""))
        return
    rules = values.pop(RULES)
    defaults = _shown(Policy())
    basic = [name for name in values if name not in ADVANCED]
    advanced = [name for name in ADVANCED if shows_all or values[name] != defaults[name]]
    for name in basic:
        click.echo(_line(name, values[name], KEYS[name].help))
    if advanced:
        click.echo("\n# Advanced keys")
    for name in advanced:
        who = f" (for {ADVANCED[name]})" if shows_all else ""
        click.echo(_line(name, values[name], KEYS[name].help + who))
    _show_rules(rules)
    hidden = len(ADVANCED) - len(advanced)
    if hidden:
        click.echo(f"\n# {hidden} advanced keys have their defaults; --all shows them.")


def _line(name: str, value: object, about: str) -> str:
    """Format a key as in the file. Its purpose is above it if the line would be too long."""
    key = f"{name} = {_written(value)}"
    if not about:
        return key
    columns = shutil.get_terminal_size().columns if sys.stdout.isatty() else sys.maxsize
    line = f"{key}   # {about}"
    if len(line) <= columns:
        return line
    folded = textwrap.wrap(about, columns - 2, break_long_words=False, break_on_hyphens=False)
    return "\n".join([*(f"# {one}" for one in folded), key])


def _show_rules(rules: list[dict[str, Any]]) -> None:
    for number, rule in enumerate(rules, 1):
        click.echo(f"\n[[{RULES}]]   # rule {number}")
        for name, value in rule.items():
            click.echo(f"{name} = {_written(value)}")
