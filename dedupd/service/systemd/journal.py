"""Logging to the journal with fields and message IDs; to standard error without a journal.

The native protocol of systemd-journald: a datagram of ``NAME=value`` lines; a value with several
lines is preceded by its length. Message IDs are those of docs/guide/service.md; they never change.
"""

import logging
import os
import struct
import sys
from enum import Enum

from dedupd_core.system.log_queue import Datagrams, LogQueue, syslog_severity

JOURNAL_SOCKET = "/run/systemd/journal/socket"


class Event(Enum):
    """An event; its value is its message ID, for ``journalctl MESSAGE_ID=…``."""

    SERVICE_READY = "e5f6f3fb091f4a4d853772d1fcfb7193"
    SERVICE_STOPPING = "6ea9266d038746a38508d0b8b8c8f478"
    RELOADED = "a34d5cda921c470abee305b706dcd613"
    RELOAD_FAILED = "c4b1e3554d7c4ec0bf4fbf91a07adfa1"
    MOUNTED = "db6dc2e04c4c4b2a88c00c01a90ac1bd"
    MOUNT_DIED = "67ac8620991549c28b856e8018abec55"
    MOUNT_FAILED = "1999c6cfb78b40bc8592c35b60f33e2b"
    UNMOUNTED = "f233861100204bc9b7b9a81616d85f2e"
    MOUNT_STAYS = "c643790a738d427b8d0c428d0a7c9958"
    JOB_STARTED = "e5353560a2184a80a6edd140b05ac320"
    JOB_ENDED = "20c255f599db4634b2bc68c500377bf7"
    JOB_FAILED = "cb260b5553154cd2afa85832eeb90403"
    PROBLEM = "d0d3f0c4a1c24c5f9d1f7c0b8a6e2f41"
    PROBLEM_OVER = "5b3c8ef0a7c9436c8f21d6f6e0b47a93"
    SPACE_LOW = "0c7b9d52e35f4f6e8a4d1f2b6c9e7d18"
    BACKLOG = "7f1e6a3c92d84b50b5c3e8d7a0f4926d"
    DAMAGE_MET = "e94a1b7d603c4d2f9b86a5c2f7d3e0b1"
    DAMAGE_REPAIRED = "3a8d5f1c74e24690a2b7c6e9d1f0843b"
    DENIED = "5686a6647da7418bbc2a78806b2ca8d6"
    STUB_REFUSED = "6f0f7d2b9a3e4c51b8e07c4a1d95e3f2"


log = logging.getLogger("dedupd.service")


def report(event: Event, message: str, level: int = logging.INFO, **fields: object) -> None:
    """Log an event. ``fields`` become fields ``DEDUPD_…`` of the journal."""
    log.log(level, "%s", message, extra={"event": event, "fields": fields})


def journal_handler(path: str = JOURNAL_SOCKET) -> Datagrams:
    """Create a handler that sends records to the journal. Raises OSError without a journal."""
    return Datagrams(path, lambda record: encode(record, record.getMessage()))


def encode(record: logging.LogRecord, message: str) -> bytes:
    """Encode a record for the journal."""
    fields = {
        "MESSAGE": message,
        "PRIORITY": str(syslog_severity(record.levelno)),
        "SYSLOG_IDENTIFIER": "dedupd",
        "LOGGER": record.name,
    }
    event = getattr(record, "event", None)
    if isinstance(event, Event):
        fields["MESSAGE_ID"] = event.value
    for name, value in getattr(record, "fields", {}).items():
        fields[f"DEDUPD_{name.upper()}"] = str(value)
    return b"".join(_field(name, value) for name, value in fields.items())


def _field(name: str, value: str) -> bytes:
    raw = value.encode("utf-8", "backslashreplace")
    if b"\n" not in raw:
        return name.encode() + b"=" + raw + b"\n"
    return name.encode() + b"\n" + struct.pack("<Q", len(raw)) + raw + b"\n"


def set_up(path: str = JOURNAL_SOCKET) -> None:
    """Send the log to the journal if systemd has started the service, else to standard error."""
    handler: logging.Handler | None = None
    if os.environ.get("JOURNAL_STREAM"):
        try:
            handler = journal_handler(path)
        except OSError:
            pass  # standard error also goes to the journal, but without fields
    if handler is None:
        handler = logging.StreamHandler(sys.stderr)
        handler.setFormatter(logging.Formatter("dedupd: %(message)s"))
    root = logging.getLogger()
    root.setLevel(logging.INFO)
    log_queue = LogQueue(handler)
    log_queue.start()
    root.addHandler(log_queue)
    # A line per request would hide the events.
    logging.getLogger("aiohttp.access").setLevel(logging.WARNING)
