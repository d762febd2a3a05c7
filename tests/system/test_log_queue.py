"""A log that nobody reads, or that is flooded: the program goes on, and losses are told."""

import logging
import socket
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from dedupd_core.system import log_queue
from dedupd_core.system.log_queue import (
    KIND_LINES_MAX,
    PERIOD_S,
    WAITING_MAX,
    Datagrams,
    LogQueue,
    RareLines,
    syslog_line,
)

AT_ONCE_S = 0.5
"""Far below the wait of a sender that is blocked, which is for ever."""


@pytest.fixture
def listener(tmp_path: Path) -> Iterator[socket.socket]:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listener:
        listener.bind(str(tmp_path / "log"))
        listener.settimeout(60)
        yield listener


def to_log(listener: socket.socket) -> LogQueue:
    log = LogQueue(
        Datagrams(listener.getsockname(), lambda one: syslog_line(one, one.getMessage()))
    )
    log.start()
    return log


def record(text: str, *arguments: object, level: int = logging.ERROR) -> logging.LogRecord:
    return logging.LogRecord("dedupd.mount", level, "", 0, text, arguments, None)


def test_a_log_that_nobody_reads_holds_nothing_up(
    listener: socket.socket, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log_queue, "SEND_WAIT_S", 0.05)
    monkeypatch.setattr(log_queue, "END_WAIT_S", 0.05)
    monkeypatch.setattr(log_queue, "PERIOD_S", 0.2)
    log = to_log(listener)
    count = WAITING_MAX + 2000
    began = time.monotonic()
    for number in range(count):
        log.handle(record("line %d of many", number, level=logging.INFO))
    assert time.monotonic() - began < AT_ONCE_S
    arrived = lost = 0
    while arrived + lost < count:
        line = listener.recv(4096)
        if b"messages were lost" in line:
            lost += int(line.split(b">")[1].split()[0])
        else:
            arrived += 1
    assert arrived + lost == count and lost > 1000
    log.close()


def test_messages_arrive_in_their_order_with_priority_and_text(listener: socket.socket) -> None:
    log = to_log(listener)
    for number in range(5):
        log.handle(record("line %d", number))
    log.close()
    found = [listener.recv(4096) for _ in range(5)]
    assert found == [b"<11>line %d\0" % number for number in range(5)]


def test_a_log_that_was_started_again_is_found(tmp_path: Path) -> None:
    path = tmp_path / "log"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as first:
        first.bind(str(path))
        log = to_log(first)
        log.handle(record("one"))
        assert b"one" in first.recv(100)
    path.unlink()
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as second:
        second.bind(str(path))
        second.settimeout(60)
        log.handle(record("two"))
        assert b"two" in second.recv(100)
        log.close()


def test_a_line_is_logged_once_a_minute_and_the_others_are_counted() -> None:
    now_s = 0.0
    lines = RareLines(lambda: now_s)
    passed = sum(lines.filter(record("read: %s", "damaged chunk 7 of f")) for _ in range(1000))
    assert passed == 1
    assert lines.filter(record("read: %s", "damaged chunk 8 of f"))
    assert lines.take_left_out() == 0, "the minute is not over"
    now_s = PERIOD_S
    assert lines.take_left_out() == 999
    assert lines.filter(record("read: %s", "damaged chunk 7 of f"))


def test_one_kind_of_line_keeps_no_other_kind_out() -> None:
    """A user that renames a damaged file between two reads makes a new line of each."""
    lines = RareLines(lambda: 0.0)
    passed = sum(lines.filter(record("read: %s", f"damaged: name {at}")) for at in range(5000))
    assert passed == KIND_LINES_MAX
    assert lines.filter(record("a commit was not rolled back: %s", "f"))


def test_events_are_never_left_out() -> None:
    lines = RareLines(lambda: 0.0)
    event = record("a job begins")
    event.event = "x"
    assert all(lines.filter(event) for _ in range(5))
