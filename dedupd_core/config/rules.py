"""Rules for parts of the tree, and the patterns in them."""

import fnmatch
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any

from dedupd_core.config.config_values import (
    DURATION,
    SIZE,
    STRINGS,
    SWITCH,
    keys_of,
    parsed_table,
)
from dedupd_core.errors import UsageError
from dedupd_core.system.paths import parents

RULES_MAX = 1000
"""A limit, because each rule is compared with each file."""


def extension_of(name: str) -> str:
    """Return the type of a file: the part after the last dot of its name, in lower case, or ""."""
    stem, dot, extension = name.rpartition(".")
    return extension.lower() if dot and stem else ""


def matching(patterns: Sequence[str], path: str, ignore_case: bool) -> str | None:
    """Return the last pattern that matches a path, relative to the volume, or its parents.

    A pattern with a slash is compared with the entire path, and one without a slash with each name.
    A pattern that starts with ``!`` excludes matches of earlier patterns; ``\\!`` is the character.
    """
    if ignore_case:
        path = path.casefold()
    for pattern in reversed(patterns):
        text = pattern[1:] if pattern.startswith(("!", "\\!")) else pattern
        if _matches(text, path, ignore_case):
            return pattern
    return None


def takes(patterns: Sequence[str], path: str, ignore_case: bool) -> bool:
    """Return whether a path matches a list; the last matching pattern decides."""
    found = matching(patterns, path, ignore_case)
    return found is not None and not found.startswith("!")


def _matches(pattern: str, path: str, ignore_case: bool) -> bool:
    if ignore_case:
        pattern = pattern.casefold()
    if "/" not in pattern:
        return any(fnmatch.fnmatchcase(part, pattern) for part in path.split("/"))
    pattern = pattern.strip("/")
    return any(fnmatch.fnmatchcase(part, pattern) for part in parents(path))


def pattern_of(path: bytes) -> str:
    """Return a pattern that matches a path and the paths below it. Bytes that are not UTF-8 become
    ``?``, since TOML cannot contain them."""
    text = path.decode("utf-8", "surrogateescape")
    return "/" + "".join(_literal(one) for one in text)


def _literal(character: str) -> str:
    if "\ud800" <= character <= "\udfff":
        return "?"
    return f"[{character}]" if character in "*?[" else character


@dataclass(frozen=True, slots=True)
class Rule:
    """The values for a part of the tree; None keeps the value of the policy."""

    path: Annotated[tuple[str, ...], STRINGS]
    min_age_s: Annotated[float | None, DURATION] = None
    min_size_bytes: Annotated[int | None, SIZE] = None
    exclude: Annotated[bool | None, SWITCH] = None
    compress: Annotated[bool | None, SWITCH] = None
    keep_deleted_s: Annotated[float | None, DURATION] = None

    def to_table(self) -> dict[str, Any]:
        """Return the form in a file."""
        return {
            name: key.form.show(value)
            for name, key in RULE_KEYS.items()
            if (value := getattr(self, key.attribute)) is not None
        }


RULE_KEYS = keys_of(Rule)


def parse_rules(value: object) -> tuple[Rule, ...]:
    """Parse the tables ``[[rule]]`` of a policy. Raises UsageError that names rule and key."""
    if not isinstance(value, list) or not all(isinstance(row, dict) for row in value):
        raise UsageError("write each rule as a table [[rule]]")
    if len(value) > RULES_MAX:
        raise UsageError(f"write at most {RULES_MAX} rules; one rule can have many paths")
    return tuple(_rule(row, f"rule {number}") for number, row in enumerate(value, 1))


def show_rules(rules: Sequence[Rule]) -> list[dict[str, Any]]:
    """Format rules as tables that :func:`parse_rules` reads as equal rules."""
    return [rule.to_table() for rule in rules]


def _rule(row: Mapping[str, Any], where: str) -> Rule:
    values = parsed_table(RULE_KEYS, row, where, UsageError)
    if not values.get("path"):
        raise UsageError(f'{where}: has no path; write path = "projects/*/render"')
    if len(values) == 1:
        keys = ", ".join(name for name in RULE_KEYS if name != "path")
        raise UsageError(f"{where}: sets no value; set one of {keys}")
    return Rule(**values)
