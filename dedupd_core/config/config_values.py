"""Values of configuration files. Parsers raise UsageError with an example of a valid value."""

import re
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import fields
from enum import StrEnum
from typing import Annotated, Any, NamedTuple, get_args, get_origin

from dedupd_core.errors import DedupdError, UsageError
from dedupd_core.units import (
    SIZE_BYTES_MAX,
    brief,
    cut,
    exact_duration,
    exact_size,
    parse_duration,
    parse_size,
)

Parse = Callable[[object], Any]

_WHOLE = re.compile(r"-?[0-9]{1,10}")


def read_table(text: str, where: str, error: type[DedupdError]) -> dict[str, Any]:
    """Parse the text of a file. Raises ``error`` that names the file and the reason."""
    try:
        return tomllib.loads(text)
    except (ValueError, RecursionError) as reason:  # too long numbers raise no TOMLDecodeError
        raise error(f"{where}: not valid TOML: {cut(str(reason))}") from reason


def duration(value: object) -> float:
    """Parse a duration, for example ``"3d"``, as seconds."""
    if not isinstance(value, str):
        raise UsageError('write a duration in quotes, for example "3d" or "12h"')
    return parse_duration(value)


def size(value: object) -> int:
    """Parse a size as bytes: a number, or for example ``"32k"``."""
    if isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= SIZE_BYTES_MAX:
        return value
    if not isinstance(value, str):
        raise UsageError('write a size, for example "32k" or "1 MiB"')
    return parse_size(value)


def fraction(value: object) -> float:
    """Parse a number from 0 up to, but not including, 1."""
    try:
        number = float(value) if isinstance(value, str | int | float) else -1.0
    except (ValueError, OverflowError):
        number = -1.0
    if isinstance(value, bool) or not 0 <= number < 1:
        raise UsageError("write a fraction from 0 to less than 1")
    return number


def yes_or_no(value: object) -> bool:
    """Parse ``true`` or ``false``, also as texts."""
    if isinstance(value, str) and value in ("true", "false"):
        return value == "true"
    if not isinstance(value, bool):
        raise UsageError("write true or false")
    return value


def strings(value: object) -> tuple[str, ...]:
    """Parse a list of texts, or one text: with commas, or a list as in the file."""
    if isinstance(value, str) and value.startswith("[") and ('"' in value or "'" in value):
        try:
            value = tomllib.loads(f"value = {value}")["value"]
        except tomllib.TOMLDecodeError:
            value = None
    elif isinstance(value, str):
        value = [part.strip() for part in value.split(",") if part.strip()]
    if not isinstance(value, list) or not all(isinstance(item, str) and item for item in value):
        raise UsageError('write a list of texts, for example ["*.tmp", "cache/"]')
    return tuple(value)


class ValueFormat(NamedTuple):
    """The syntax of one kind of value: ``parse`` reads the output of ``show`` as an equal value."""

    parse: Parse
    show: Callable[[Any], Any] = str
    unit: str = ""
    """The end of the names of attributes with such a value."""


DURATION = ValueFormat(duration, exact_duration, "s")
SIZE = ValueFormat(size, exact_size, "bytes")
FRACTION = ValueFormat(fraction, float)
SWITCH = ValueFormat(yes_or_no, bool)
STRINGS = ValueFormat(strings, list)


def whole(low: int, high: int) -> ValueFormat:
    """Return the form of whole numbers within bounds."""

    def parse(value: object) -> int:
        if isinstance(value, str) and _WHOLE.fullmatch(value):
            value = int(value)
        if not isinstance(value, int) or isinstance(value, bool) or not low <= value <= high:
            raise UsageError(f"write a whole number from {low} to {high}")
        return value

    return ValueFormat(parse, int)


def choice(choices: type[StrEnum]) -> ValueFormat:
    """Return the form of a choice of words."""

    def parse(value: object) -> StrEnum:
        for one in choices:
            if one == value:
                return one
        raise UsageError("write " + " or ".join(f'"{choice}"' for choice in choices))

    return ValueFormat(parse)


class Key(NamedTuple):
    """A key in a file, the attribute with its value, and its description."""

    name: str
    attribute: str
    form: ValueFormat
    help: str = ""


def keys_of(table: type) -> dict[str, Key]:
    """Return the keys of a table that is read into this dataclass: its attributes with a form.

    ``Annotated`` gives an attribute its form and its description. An enum needs no form: its values
    are words. The name of the attribute is the name of the key plus the unit.
    """
    found = {}
    for one in fields(table):
        if get_origin(one.type) is Annotated:
            kind, *rest = get_args(one.type)
            form = rest.pop(0) if isinstance(rest[0], ValueFormat) else choice(kind)
            name = one.name.removesuffix(f"_{form.unit}")
            found[name] = Key(name, one.name, form, *rest)
    return found


def parsed(
    keys: Mapping[str, Key], name: str, value: object, where: str, error: type[DedupdError]
) -> Any:
    """Parse the value of a key. Raises ``error`` that names file, key, value and a valid value."""
    if name not in keys:
        raise error(f"{where}: unknown key {brief(name)}; use one of {', '.join(keys)}")
    try:
        return keys[name].form.parse(value)
    except UsageError as reason:
        raise error(f"{where}: {name} = {brief(value)}: {reason}") from reason


def parsed_table(
    keys: Mapping[str, Key], table: Mapping[str, Any], where: str, error: type[DedupdError]
) -> dict[str, Any]:
    """Parse the values of a table, by attribute. Raises ``error`` like :func:`parsed`."""
    found = {}
    for name, value in table.items():
        meant = parsed(keys, name, value, where, error)
        found[keys[name].attribute] = meant
    return found
