"""The line between a job's process and the service that started it.

A socket whose descriptor is named in the environment; lines of JSON. The job sends its progress
and its report; the service sends pause, resume and stop. If the service goes away, the job saves
its progress and ends.
"""

import json
import os
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from typing import Any

from dedupd_core.failures import Failures
from jobs.frame.run import JobRun

CHANNEL_VARIABLE = "DEDUPD_JOB_CHANNEL"

_CONTROL = "pause"

_FAILURES = Failures("dedupd.jobs")


class Channel:
    """The job's end."""

    def __init__(self, connection: socket.socket) -> None:
        self._socket = connection
        self._lock = threading.Lock()

    @classmethod
    def from_environment(cls) -> "Channel | None":
        """The line to the service; None where the job was started by hand."""
        number = os.environ.pop(CHANNEL_VARIABLE, "")
        if not number:
            return None
        os.set_inheritable(int(number), False)
        return cls(socket.socket(fileno=int(number)))

    @contextmanager
    def serving(self, run: JobRun) -> Iterator[None]:
        """Obey the service while the block runs; at its end, hand over the report, and say
        whether the job got through."""
        thread = threading.Thread(target=self._obey, args=(run,), name="channel", daemon=True)
        thread.start()
        self.tell(run)
        finished = False
        try:
            yield
            finished = True
        finally:
            self.tell(run)
            self._send({"report": run.report, "finished": finished})

    def tell(self, run: JobRun) -> None:
        """Say how far the job is, and why it waits."""
        self._send(
            {
                "progress": asdict(run.progress),
                "started_s": run.started_s,
                "held": run.pace.is_held,
                "reason": run.pace.reason,
            }
        )

    def _send(self, message: dict[str, Any]) -> None:
        try:
            with self._lock:
                self._socket.sendall(json.dumps(message).encode() + b"\n")
        except OSError:
            pass  # the service is gone; the other thread notices too

    def _obey(self, run: JobRun) -> None:
        with self._socket.makefile("rb") as lines:
            try:
                for line in lines:
                    with _FAILURES.noted("a request of the service"):
                        self._obey_one(run, json.loads(line)["order"])
            except OSError:
                pass  # the same as the end of the lines
        run.cancel()

    def _obey_one(self, run: JobRun, order: str) -> None:
        if order == "pause":
            run.pace.hold(_CONTROL, "paused manually")
            self.tell(run)
        elif order == "resume":
            run.pace.release(_CONTROL)
            self.tell(run)
        elif order == "stop":
            run.cancel()
