"""Writing ``policy.toml``: comments and other keys stay as they are."""

from typing import Any

import tomlkit
from tomlkit.exceptions import TOMLKitError

from dedupd.config.config_values import parsed, read_table
from dedupd.config.policy import KEYS, PARSERS, Policy, parse_policy
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


def wrong_keys(text: str, where: str) -> list[str]:
    """The keys of a policy file that are not valid; none where it is no TOML at all."""
    try:
        table = read_table(text, where, PolicyError)
    except PolicyError:
        return []
    return [name for name, value in table.items() if not _is_valid(name, value, where)]


def _is_valid(name: str, value: Any, where: str) -> bool:
    try:
        parsed(PARSERS, name, value, where, PolicyError)
    except PolicyError:
        return False
    return True


def set_in_text(text: str, name: str, value: str, where: str) -> str:
    """The file's text with one key set, comments kept, however wrong it was. Other keys stay, right
    or wrong. Raises PolicyError."""
    meant = parsed(PARSERS, name, value, where, PolicyError)
    document = _document(text, where)
    written: Any = value
    if isinstance(meant, tuple):
        written = list(meant)
    elif isinstance(meant, (int, float)) and not KEYS[name].unit:
        written = meant
    document[name] = written
    changed = tomlkit.dumps(document)
    if name in wrong_keys(changed, where):
        parse_policy(changed, where)  # says why
    return changed


def reset_in_text(text: str, name: str, where: str) -> str:
    """The file's text without one key, which then has its default. Raises PolicyError."""
    document = _document(text, where)
    if name in document:
        del document[name]
    elif name not in KEYS:
        raise PolicyError(f"{where}: unknown key {brief(name)}; the keys are {', '.join(KEYS)}")
    return tomlkit.dumps(document)


def _document(text: str, where: str) -> tomlkit.TOMLDocument:
    """Raises PolicyError where a text is no TOML: then no key of it can be found."""
    try:
        read_table(text, where, PolicyError)
        return tomlkit.parse(text)
    except (PolicyError, TOMLKitError) as error:
        raise PolicyError(f"{error}; `dedupd policy --edit` opens the file in an editor") from None
