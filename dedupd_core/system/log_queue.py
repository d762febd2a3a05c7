"""A log that can neither block a process nor flood the machine's log.

A log socket without an active reader accepts some hundred messages, and then blocks its senders; so
does a terminal. Here a separate thread sends them. Messages that it cannot send are lost, and
counted. A line that repeats within a minute is logged once, and the number of lines of one kind is
limited: users can cause errors as fast as they send requests.
"""

import atexit
import logging
import logging.handlers
import queue
import socket
import threading
import time
from collections.abc import Callable

WAITING_MAX = 1000
"""Messages that wait for the thread: some hundred kilobytes in total."""

SEND_WAIT_S = 1.0
"""A log that reads nothing for this time counts as dead, until the next message."""

PERIOD_S = 60.0

KIND_LINES_MAX = 60
"""Lines of one kind (from one statement of the program) per period."""

END_WAIT_S = 2.0
"""The longest time that the end of the process waits for the last messages."""


class RareLines(logging.Filter):
    """Passes each warning and error once per period, up to a limit for each kind.

    Events (records with an ``event``) always pass: their senders limit them.
    """

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        super().__init__()
        self._now = now
        self._lock = threading.Lock()
        self._began_s = now()
        self._seen: set[int] = set()
        self._of_kind: dict[tuple[str, str], int] = {}
        self._left_out = 0

    def filter(self, record: logging.LogRecord) -> bool:
        if record.levelno < logging.WARNING or hasattr(record, "event"):
            return True
        kind = (record.name, str(record.msg))
        line = hash((kind, record.levelno, record.getMessage()))
        with self._lock:
            self._begin_period()
            if line in self._seen or self._of_kind.get(kind, 0) >= KIND_LINES_MAX:
                self._left_out += 1
                return False
            self._seen.add(line)
            self._of_kind[kind] = self._of_kind.get(kind, 0) + 1
            return True

    def _begin_period(self) -> None:
        if self._now() - self._began_s >= PERIOD_S:
            self._began_s = self._now()
            self._seen.clear()
            self._of_kind.clear()

    def take_left_out(self) -> int:
        """Return how many lines were dropped in finished periods and not yet reported."""
        with self._lock:
            if self._now() - self._began_s < PERIOD_S:
                return 0
            left_out, self._left_out = self._left_out, 0
            return left_out


class LogQueue(logging.handlers.QueueHandler):
    """Hands records to a thread, in which ``handler`` may wait for any time.

    They wait until :meth:`start`. A thread has the rights that the process has when it starts.
    """

    def __init__(self, handler: logging.Handler) -> None:
        self._waiting: queue.Queue[logging.LogRecord | None] = queue.Queue(WAITING_MAX)
        super().__init__(self._waiting)
        self._handler = handler
        self._lines = RareLines()
        self.addFilter(self._lines)
        self._lost = 0
        self._counting = threading.Lock()
        self._is_closed = False
        self._thread = threading.Thread(target=self._run, name="log", daemon=True)
        self._is_started = False
        atexit.register(self.close)

    def start(self) -> None:
        """Start the thread, unless it is running."""
        if not self._is_started:
            self._is_started = True
            self._thread.start()

    def enqueue(self, record: logging.LogRecord) -> None:
        try:
            self._waiting.put_nowait(record)
        except queue.Full:
            self._lose(1)

    def _lose(self, count: int) -> None:
        with self._counting:
            self._lost += count

    def close(self) -> None:
        """Send the waiting messages, as far as that is possible in a short time."""
        if not self._is_closed:
            self._is_closed = True
            atexit.unregister(self.close)
            try:
                self._waiting.put(None, timeout=END_WAIT_S)
                if self._is_started:
                    self._thread.join(END_WAIT_S)
                else:
                    self._run()
            except queue.Full:
                pass
        super().close()

    def _run(self) -> None:
        while True:
            try:
                record = self._waiting.get(timeout=PERIOD_S)
                if record is None:
                    return
            except queue.Empty:
                record = None
            self._tell_left_out()
            if record is not None:
                self._send(record)

    def _tell_left_out(self) -> None:
        left_out = self._lines.take_left_out()
        if left_out:
            self._send(_note(f"{left_out} similar messages were skipped"))
        with self._counting:
            lost, self._lost = self._lost, 0
        if lost and not self._send(
            _note(f"{lost} messages were lost: the log did not accept them")
        ):
            self._lose(lost - 1)

    def _send(self, record: logging.LogRecord) -> bool:
        try:
            self._handler.emit(record)
        except OSError:
            self._lose(1)
            return False
        return True


def _note(text: str) -> logging.LogRecord:
    return logging.LogRecord("dedupd", logging.WARNING, __file__, 0, text, None, None)


class Datagrams(logging.Handler):
    """Sends records as datagrams to a Unix socket; ``encoded`` makes a datagram from a record."""

    def __init__(self, path: str, encoded: Callable[[logging.LogRecord], bytes]) -> None:
        """Raises OSError if no program listens."""
        super().__init__()
        self._path = path
        self._encoded = encoded
        self._socket = self._connected()

    def _connected(self) -> socket.socket:
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC)
        try:
            connection.settimeout(SEND_WAIT_S)
            connection.connect(self._path)
        except BaseException:
            connection.close()
            raise
        return connection

    def emit(self, record: logging.LogRecord) -> None:
        """Raises OSError if the message is lost."""
        data = self._encoded(record)
        try:
            self._socket.send(data)
        except (ConnectionError, FileNotFoundError):
            # The program that listens was restarted, with a new socket.
            self._socket.close()
            self._socket = self._connected()
            self._socket.send(data)

    def close(self) -> None:
        self._socket.close()
        super().close()


_FACILITY_USER = 1


def syslog_line(record: logging.LogRecord, text: str) -> bytes:
    """Format a record for ``/dev/log``."""
    priority = _FACILITY_USER * 8 + syslog_severity(record.levelno)
    return f"<{priority}>{text}\0".encode("utf-8", "backslashreplace")


def syslog_severity(level: int) -> int:
    """Return the severity in syslog and the journal for a Python log level."""
    for least, severity in _SEVERITIES:
        if level >= least:
            return severity
    return 7


_SEVERITIES = (
    (logging.CRITICAL, 2),
    (logging.ERROR, 3),
    (logging.WARNING, 4),
    (logging.INFO, 6),
)
