"""The address of a store: ``rados:POOL/NAME[?conf=…&user=…&keyring=…&timeout=…]``."""

import re
from dataclasses import asdict, dataclass
from urllib.parse import parse_qsl, urlencode

from dedupd_core.errors import Damaged, UsageError
from dedupd_core.format.checked_json import NOT_VALID, decoded, encoded
from dedupd_core.units import parse_duration

SCHEME = "rados:"
DEFAULT_CONF = "/etc/ceph/ceph.conf"
DEFAULT_TIMEOUT_S = 30.0
_FORM = "rados:POOL/NAME[?conf=FILE&user=NAME&keyring=FILE&timeout=30s]"
_OPTIONS = {"conf", "user", "keyring", "timeout"}


@dataclass(frozen=True, slots=True)
class StoreAddress:
    """A pool, a namespace in it, and the configuration and the user for the connection.

    ``timeout_s``: an operation without an answer fails after this time.
    """

    pool: str
    name: str
    conf: str = DEFAULT_CONF
    user: str = "admin"
    keyring: str | None = None
    timeout_s: float = DEFAULT_TIMEOUT_S

    def __str__(self) -> str:
        """Return the address in its text form, with the options that are not the default."""
        options = {
            "conf": self.conf if self.conf != DEFAULT_CONF else "",
            "user": self.user if self.user != "admin" else "",
            "keyring": self.keyring or "",
            "timeout": f"{self.timeout_s:g}s" if self.timeout_s != DEFAULT_TIMEOUT_S else "",
        }
        query = urlencode({name: value for name, value in options.items() if value}, safe="/")
        return f"{SCHEME}{self.pool}/{self.name}" + (f"?{query}" if query else "")


def is_address(text: str) -> bool:
    """Return whether a store with this name is in a cluster, and not in a directory."""
    return text.startswith(SCHEME)


def parse_address(text: str) -> StoreAddress:
    """Parse a token. Raises UsageError."""
    place, _, query = text.removeprefix(SCHEME).partition("?")
    pool, slash, name = place.partition("/")
    if not is_address(text) or not slash:
        raise UsageError(f"{text}: not the address of a store; write {_FORM}")
    for part in (pool, name):
        if not re.fullmatch(r"[A-Za-z0-9._-]+", part):
            raise UsageError(f"{text}: {part!r} is not the name of a pool or store; write {_FORM}")
    options = dict(parse_qsl(query, keep_blank_values=True))
    unknown = options.keys() - _OPTIONS
    if unknown:
        raise UsageError(f"{text}: unknown option {min(unknown)!r}; write {_FORM}")
    timeout_s = DEFAULT_TIMEOUT_S
    if "timeout" in options:
        timeout_s = parse_duration(options["timeout"])
        if not 1 <= timeout_s <= 3600:
            raise UsageError(f"{text}: the timeout is out of range; use 1s to 1h")
    return StoreAddress(
        pool,
        name,
        options.get("conf", DEFAULT_CONF),
        options.get("user", "admin").removeprefix("client."),
        options.get("keyring"),
        timeout_s,
    )


@dataclass(frozen=True, slots=True)
class StoreBinding:
    """The store with the versions that a volume's stubs name: its address, and its uuid, which must
    match the store there. ``cache_bytes``: the size of this host's cache of its chunks."""

    address: str
    store: str
    cache_bytes: int

    def to_json(self) -> bytes:
        return encoded(asdict(self))

    @classmethod
    def from_json(cls, data: bytes, where: str) -> "StoreBinding":
        """Return the recipe with this number. Raises Damaged."""
        try:
            return cls(**decoded(data))
        except NOT_VALID as error:
            raise Damaged(
                f"{where}: the file that names the store of the volume is damaged ({error});"
                " restore it from a backup"
            ) from error
