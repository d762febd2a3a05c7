"""Writes ``policy.toml`` without changes to comments and other keys."""

from collections.abc import Mapping, Sequence
from typing import Any

import tomlkit
from tomlkit.exceptions import TOMLKitError

from dedupd_core.config.config_values import read_table
from dedupd_core.config.policy import KEYS, RULES, TABLES, Policy, parse_policy, parsed_value
from dedupd_core.config.profiles import Types
from dedupd_core.errors import PolicyError
from dedupd_core.units import brief


def policy_text(values: Mapping[str, Any]) -> str:
    """Return the text of a new policy file that sets ``values`` and explains every key."""
    document = tomlkit.document()
    document.add(tomlkit.comment("Which files dedupd optimizes on this volume, and how."))
    default = Policy()
    for key in KEYS.values():
        document.add(tomlkit.nl())
        document.add(tomlkit.comment(f"{key.help}"))
        if key.name in values:
            document[key.name] = _with_reasons(values[key.name])
        else:
            shown = tomlkit.item(key.form.show(getattr(default, key.attribute))).as_string()
            document.add(tomlkit.comment(f"{key.name} = {shown}"))
    document.add(tomlkit.nl())
    document.add(tomlkit.comment("Values for parts of the tree; see docs/guide/policy.md:"))
    document.add(tomlkit.comment(f"[[{RULES}]]"))
    document.add(tomlkit.comment('    path = ["projects/*/render"]'))
    document.add(tomlkit.comment('    min_age = "0s"'))
    return tomlkit.dumps(document)


def _with_reasons(value: object) -> Any:
    """Format a value: lists of types have one line each, with the reason after it."""
    if not isinstance(value, list) or not all(isinstance(one, Types) for one in value):
        return value
    array = tomlkit.array()
    for group in value:
        array.add_line(*group.types, comment=group.reason)
    array.add_line(indent="")
    return array


def wrong_keys(text: str, where: str) -> list[str]:
    """Return the invalid keys of a policy file; none if it is no TOML at all."""
    try:
        table = read_table(text, where, PolicyError)
    except PolicyError:
        return []
    return [name for name, value in table.items() if not _is_valid(name, value, where)]


def _is_valid(name: str, value: object, where: str) -> bool:
    try:
        parsed_value(name, value, where)
    except PolicyError:
        return False
    return True


def set_in_text(text: str, name: str, value: str, where: str) -> str:
    """The file's text with one key set, comments kept, however wrong it was. Other keys stay, right
    or wrong. Raises PolicyError."""
    meant = parsed_value(name, value, where)
    document = _document(text, where)
    written: object = value
    if isinstance(meant, tuple):
        written = list(meant)
    elif isinstance(meant, (int, float)) and not KEYS[name].form.unit:
        written = meant
    document[name] = written
    changed = tomlkit.dumps(document)
    if name in wrong_keys(changed, where):
        parse_policy(changed, where)  # raises the error with the reason
    return changed


def reset_in_text(text: str, name: str, where: str) -> str:
    """Remove one key from a file's text, so that it has its default. Raises PolicyError."""
    document = _document(text, where)
    if name in document:
        del document[name]
    elif name not in TABLES:
        raise PolicyError(f"{where}: unknown key {brief(name)}; use one of {', '.join(KEYS)}")
    return tomlkit.dumps(document)


def keep_plain(text: str, patterns: Sequence[str], where: str) -> str:
    """Append a rule that excludes ``patterns`` to a file's text. Raises PolicyError."""
    document = _document(text, where)
    rules = document.get(RULES)
    if rules is None:
        rules = tomlkit.aot()
        document[RULES] = rules
    if len(rules) and set(rules[-1]) == {"path", "exclude"} and rules[-1]["exclude"] is True:
        last = rules[-1]
        before = last["path"] if isinstance(last["path"], list) else [str(last["path"])]
        last["path"] = [*before, *(one for one in patterns if one not in before)]
    else:
        rule = tomlkit.table()
        rule["path"] = list(patterns)
        rule["exclude"] = True
        rules.append(rule)
    changed = tomlkit.dumps(document)
    parse_policy(changed, where)
    return changed


def _document(text: str, where: str) -> tomlkit.TOMLDocument:
    """Parse a text. Raises PolicyError if it is no TOML: then it has no keys at all."""
    try:
        read_table(text, where, PolicyError)
        return tomlkit.parse(text)
    except (PolicyError, TOMLKitError) as error:
        raise PolicyError(
            f"{error}; to open the file in an editor, run `dedupd policy --edit`"
        ) from None
