"""The catalogue: derived state in LMDB. Losing it costs history and progress, never data."""

import json
import os
import shutil
from typing import Any

import lmdb

MAP_BYTES = 4 << 30
"""Address space, not memory or disk: LMDB grows its file as it needs."""


class Catalog:
    """Job history, totals and checkpoints of one volume."""

    def __init__(self, directory: str) -> None:
        """Open it; a catalogue that cannot be opened is started anew."""
        os.makedirs(directory, mode=0o700, exist_ok=True)
        try:
            self._env = _open(directory)
        except lmdb.Error:
            shutil.rmtree(directory)
            os.makedirs(directory, mode=0o700)
            self._env = _open(directory)

    def close(self) -> None:
        self._env.close()

    def __enter__(self) -> "Catalog":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def put(self, key: str, value: Any) -> None:
        """Store a JSON value, durably."""
        with self._env.begin(write=True) as transaction:
            transaction.put(key.encode(), json.dumps(value).encode())

    def get(self, key: str) -> Any:
        """The value of a key, or None."""
        with self._env.begin() as transaction:
            raw = transaction.get(key.encode())
        return None if raw is None else json.loads(raw)

    def delete(self, key: str) -> None:
        with self._env.begin(write=True) as transaction:
            transaction.delete(key.encode())

    def put_bytes(self, key: str, value: bytes) -> None:
        """Store raw bytes, durably."""
        with self._env.begin(write=True) as transaction:
            transaction.put(key.encode(), value)

    def get_bytes(self, key: str) -> bytes | None:
        with self._env.begin() as transaction:
            value = transaction.get(key.encode())
            return None if value is None else bytes(value)

    def latest(self, prefix: str, count: int) -> list[Any]:
        """The last ``count`` values whose keys begin with ``prefix``, newest first."""
        found: list[Any] = []
        with self._env.begin() as transaction, transaction.cursor() as cursor:
            after = prefix.encode() + b"\xff"
            if not cursor.set_range(after):
                valid = cursor.last()
            else:
                valid = cursor.prev()
            while valid and len(found) < count and cursor.key().startswith(prefix.encode()):
                found.append(json.loads(cursor.value()))
                valid = cursor.prev()
        return found


def _open(directory: str) -> lmdb.Environment:
    return lmdb.open(directory, map_size=MAP_BYTES, max_readers=64, mode=0o600)
