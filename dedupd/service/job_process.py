"""One job of the service: its process, and the connection to it (jobs/frame/channel.py)."""

import asyncio
import json
import logging
import socket
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from dedupd.service.scheduler import TaskName, Urgency
from dedupd.service.systemd.slice import command_in_slice
from dedupd_core.errors import EXIT_BUSY, EXIT_DAMAGED, EXIT_FINDINGS
from dedupd_core.system.processes import server_environment
from jobs.frame.channel import CHANNEL_VARIABLE
from jobs.frame.run import TimeToGo

log = logging.getLogger("dedupd.service")

LINE_BYTES_MAX = 16 << 20
"""A report lists up to a hundred files, and a report of damage lists more."""

OUTPUT_BYTES_MAX = 64 << 10
"""The part of a job's output that is kept."""


class JobState(StrEnum):
    WAITING = "waiting"
    RUNNING = "running"
    HELD = "held"
    STOPPING = "stopping"
    ENDED = "ended"


@dataclass(slots=True, eq=False)
class JobProcess:
    """A job that is queued, running or finished. Times are seconds since 1970."""

    id: str
    uuid: str
    """The uuid of the volume."""
    job: str
    path: str
    arguments: tuple[str, ...]
    urgency: Urgency
    submitted_s: float
    task: TaskName | None = None
    eager: bool = True
    pressing: bool = False
    """True if it frees space because space is low: it slows down for users, but does not pause."""
    started_s: float | None = None
    finished_s: float | None = None
    until_s: float | None = None
    stop_reason: str = ""
    cancelled: bool = False
    waits_for: str = ""
    """The reason why it waits or is slow; empty at full speed."""
    held: bool = False
    paused: bool = False
    """True if its volume is paused."""
    progress: Mapping[str, Any] = field(default_factory=dict)
    exit_status: int | None = None
    report: Mapping[str, Any] | None = None
    got_through: bool = False
    """True if the process reported that it finished; the report has its findings."""
    output: str = ""
    errors: str = ""
    changed: asyncio.Event = field(default_factory=asyncio.Event)
    """Set, and replaced by a new event, whenever the job changes."""
    _to_go: TimeToGo = field(default_factory=TimeToGo)
    _channel: asyncio.StreamWriter | None = None
    _began_s: float | None = None
    """Like ``started_s``, but of a monotonic clock."""

    @property
    def state(self) -> JobState:
        if self.finished_s is not None:
            return JobState.ENDED
        if self.started_s is None:
            return JobState.WAITING
        if self.stop_reason:
            return JobState.STOPPING
        return JobState.HELD if self.held else JobState.RUNNING

    @property
    def running_s(self) -> float:
        """The run time so far, independent of changes to the clock."""
        return 0.0 if self._began_s is None else time.monotonic() - self._began_s

    @property
    def to_go_s(self) -> float | None:
        """The remaining time of its phase, if it is not held; None if unknown."""
        return None if self.finished_s is not None else self._to_go.seconds

    @property
    def completed(self) -> bool:
        """True if it did all of its work, with or without findings."""
        return self.exit_status is not None and self.got_through

    @property
    def failed(self) -> bool:
        """True if it ended on its own, without finishing its work, and within its time."""
        if self.exit_status is None or self.stop_reason or self.got_through:
            return False
        return self.report is None or self.report.get("outcome") != "stopped"

    @property
    def was_busy(self) -> bool:
        """True if another process held the volume, or its mount was missing for a moment."""
        return self.failed and self.exit_status == EXIT_BUSY

    @property
    def outcome(self) -> str:
        """The outcome, for users."""
        if self.finished_s is None:
            return self.state.value
        if self.stop_reason and not self.got_through:
            return f"stopped: {self.stop_reason}"
        if self.report is not None:
            return str(self.report.get("outcome", "done"))
        if self.errors.strip():
            return self.errors.strip().rpartition("\n")[2].removeprefix("dedupd: ")
        status = self.exit_status
        if status is not None and status < 0:
            return f"killed by signal {-status}"
        return f"exited with status {status}"

    @property
    def found_damage(self) -> bool:
        return self.exit_status == EXIT_DAMAGED

    def change(self) -> None:
        """Wake all tasks that wait for a change."""
        self.changed.set()
        self.changed = asyncio.Event()

    def order(self, order: str) -> None:
        """Tell the process to pause, resume or stop. Does nothing if there is no process."""
        if self._channel is not None and not self._channel.is_closing():
            self._channel.write(json.dumps({"order": order}).encode() + b"\n")

    def stop(self, reason: str) -> None:
        """Make the job save its progress and stop."""
        self.stop_reason = self.stop_reason or reason
        self.order("stop")
        self.change()

    def pause(self, paused: bool) -> None:
        """Pause the job at its next safe point, or resume it."""
        self.paused = paused
        self.order("pause" if paused else "resume")

    async def run(self) -> None:
        """Start the process, and follow it until it exits."""
        self.started_s, self._began_s = time.time(), time.monotonic()
        try:
            await self._follow()
        except OSError as error:
            self.exit_status, self.errors = EXIT_FINDINGS, f"cannot be started: {error}"
        except Exception as error:
            # Its channel is closed by now, so the process stops at its next safe point.
            self.exit_status, self.errors = EXIT_FINDINGS, f"cannot be monitored: {error!r}"
            log.exception("%s on %s cannot be monitored", self.job, self.path)
        self.held, self.waits_for = False, ""
        self.finished_s = time.time()
        self.change()

    async def _follow(self) -> None:
        in_slice = await command_in_slice()
        ours, theirs = socket.socketpair()
        try:
            process = await asyncio.create_subprocess_exec(
                *in_slice,
                *self._command(),
                pass_fds=[theirs.fileno()],
                stdin=asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.PIPE,
                env={**server_environment(), CHANNEL_VARIABLE: str(theirs.fileno())},
                start_new_session=True,
                cwd="/",
            )
        finally:
            theirs.close()
        reader, self._channel = await asyncio.open_connection(sock=ours, limit=LINE_BYTES_MAX)
        for order, is_wanted in (("pause", self.paused), ("stop", bool(self.stop_reason))):
            if is_wanted:
                self.order(order)
        assert process.stdout is not None and process.stderr is not None
        try:
            _, output, errors, status = await asyncio.gather(
                self._listen(reader),
                _tail(process.stdout),
                _tail(process.stderr),
                process.wait(),
            )
        finally:
            self._channel.close()
        self.output, self.errors, self.exit_status = output, errors, status

    def _command(self) -> list[str]:
        gentle = ["--pressing"] if self.pressing else [] if self.eager else ["--gentle"]
        command = [sys.executable, "-P", "-m", "dedupd.cli.main", "run", "--here", *gentle]
        return [*command, self.job, *self.arguments, "--", self.path]

    async def _listen(self, reader: asyncio.StreamReader) -> None:
        """Process the messages of the job until it closes the connection."""
        while True:
            try:
                line = await reader.readline()
            except OSError:
                return
            except ValueError:
                # The line is too long, and the process waits for a reader. Closing stops it.
                assert self._channel is not None
                self._channel.close()
                return
            if not line.endswith(b"\n"):
                return  # the process was killed while it wrote a line
            message = json.loads(line)
            if "report" in message:
                self.report, self.got_through = message["report"], message["finished"]
                continue
            self.progress = message["progress"]
            self.held, self.waits_for = message["held"], message["reason"]
            phase, done, total = (self.progress[name] for name in ("phase", "done", "total"))
            self._to_go.see(phase, done, total, held=self.held)
            self.change()


async def _tail(stream: asyncio.StreamReader) -> str:
    """Return the last part of a process's output."""
    kept = b""
    while data := await stream.read(1 << 16):
        kept = (kept + data)[-OUTPUT_BYTES_MAX:]
    return kept.decode("utf-8", "replace")
