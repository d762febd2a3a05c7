"""Writing ``policy.toml``: comments and other keys stay as they are."""

from typing import Any

import tomlkit

from dedupd.config.config_values import parsed
from dedupd.config.policy import KEYS, PARSERS, Policy, parse_policy
from dedupd.errors import PolicyError


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
    meant = parsed(PARSERS, name, value, where, PolicyError)
    parse_policy(text, where)
    document = tomlkit.parse(text)
    written: Any = value
    if isinstance(meant, tuple):
        written = list(meant)
    elif isinstance(meant, (int, float)) and not KEYS[name].unit:
        written = meant
    document[name] = written
    changed = tomlkit.dumps(document)
    parse_policy(changed, where)
    return changed
