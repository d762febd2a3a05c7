"""What the service says to systemd and to the journal, byte by byte."""

import logging
import os
import socket
import struct
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dedupd.service.systemd.journal import Event, encode, journal_handler, report
from dedupd.service.systemd.notify import Notifier

DOCUMENT = Path(__file__).resolve().parents[2] / "docs/guide/service.md"


@pytest.fixture
def listener(tmp_path: Path) -> socket.socket:
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    listener.bind(str(tmp_path / "socket"))
    listener.settimeout(60)
    return listener


def test_states_arrive_as_systemd_reads_them(listener: socket.socket) -> None:
    notifier = Notifier({"NOTIFY_SOCKET": listener.getsockname()})
    notifier.ready("2 of 2 volumes mounted")
    assert listener.recv(100) == b"READY=1\nSTATUS=2 of 2 volumes mounted"
    notifier.extend(1.5)
    assert listener.recv(100) == b"EXTEND_TIMEOUT_USEC=1500000"


def test_a_name_of_the_abstract_namespace_works() -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listener:
        listener.bind(f"\0dedupd-test-{os.getpid()}")
        Notifier({"NOTIFY_SOCKET": f"@dedupd-test-{os.getpid()}"}).stopping()
        assert listener.recv(100) == b"STOPPING=1"


def test_without_a_listener_nothing_happens(tmp_path: Path) -> None:
    Notifier({}).ready("")
    Notifier({"NOTIFY_SOCKET": str(tmp_path / "none")}).ready("")


@pytest.mark.parametrize(
    ("values", "seconds"),
    [
        ({}, None),
        ({"WATCHDOG_USEC": "3000000"}, 1.5),
        ({"WATCHDOG_USEC": "3000000", "WATCHDOG_PID": "1"}, None),
        ({"WATCHDOG_USEC": "3000000", "WATCHDOG_PID": str(os.getpid())}, 1.5),
        ({"WATCHDOG_USEC": "soon"}, None),
    ],
)
def test_the_watchdog_is_fed_twice_as_often_as_it_must(
    values: dict[str, str], seconds: float | None
) -> None:
    assert Notifier(values).watchdog_s == seconds


def fields_of(raw: bytes) -> dict[str, str]:
    """A datagram as the journal reads it."""
    found = {}
    while raw:
        name, _, rest = raw.partition(b"\n")
        if b"=" in name:
            key, _, value = name.partition(b"=")
        else:
            key = name
            (length,) = struct.unpack("<Q", rest[:8])
            value, rest = rest[8 : 8 + length], rest[8 + length + 1 :]
        found[key.decode()] = value.decode()
        raw = rest
    return found


@given(st.text(st.characters(codec="utf-8"), max_size=200))
def test_any_message_arrives_whole(message: str) -> None:
    record = logging.LogRecord("dedupd", logging.WARNING, "", 0, "", (), None)
    fields = fields_of(encode(record, message))
    assert fields["MESSAGE"] == message and fields["PRIORITY"] == "4"


def test_an_event_has_its_id_and_fields(listener: socket.socket) -> None:
    handler = journal_handler(listener.getsockname())
    logger = logging.getLogger("dedupd.service")
    logger.addHandler(handler)
    try:
        report(Event.MOUNT_DIED, "it died", logging.ERROR, path="/srv/share", volume=None)
    finally:
        logger.removeHandler(handler)
        handler.close()
    fields = fields_of(listener.recv(4096))
    assert fields["MESSAGE"] == "it died" and fields["PRIORITY"] == "3"
    assert fields["MESSAGE_ID"] == Event.MOUNT_DIED.value
    assert fields["DEDUPD_PATH"] == "/srv/share"


def test_every_event_is_documented_with_its_id() -> None:
    text = DOCUMENT.read_text()
    assert [event.name for event in Event if f"`{event.value}`" not in text] == []
    assert len({event.value for event in Event}) == len(Event)
