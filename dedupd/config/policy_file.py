"""Writing ``policy.toml``: comments and other keys stay as they are."""

from typing import Any

import tomlkit

from dedupd.config.policy import KEYS, Policy, apply_values, parse_policy
from dedupd.errors import PolicyError
from dedupd.units import brief


def policy_text(values: dict[str, Any]) -> str:
    """A new policy file that sets ``values`` and explains every key."""
    document = tomlkit.document()
    document.add(tomlkit.comment("What dedupd optimizes on this volume, and how."))
    default = Policy()
    for key in KEYS.values():
        document.add(tomlkit.nl())
        document.add(tomlkit.comment(f"{key.help}"))
        if key.name in values:
            document[key.name] = values[key.name]
        else:
            shown = tomlkit.item(key.show(getattr(default, key.attribute))).as_string()
            document.add(tomlkit.comment(f"{key.name} = {shown}"))
    return tomlkit.dumps(document)


def set_in_text(text: str, name: str, value: str, where: str) -> str:
    """The file's text with one key set, comments kept. Raises PolicyError."""
    if name not in KEYS:
        raise PolicyError(f"{where}: unknown key {brief(name)}; the keys are {', '.join(KEYS)}")
    parse_policy(text, where)
    apply_values(Policy(), {name: value}, where)
    parsed = KEYS[name].parse(value)
    document = tomlkit.parse(text)
    written: Any = value
    if isinstance(parsed, tuple):
        written = list(parsed)
    elif isinstance(parsed, (int, float)) and not KEYS[name].unit:
        written = parsed
    document[name] = written
    changed = tomlkit.dumps(document)
    parse_policy(changed, where)
    return changed
