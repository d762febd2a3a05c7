"""The connection between a job's process and the service that started it.

It is a socket that carries lines of JSON; an environment variable has its descriptor. The job sends
its progress and its report; the service sends pause, resume and stop. If the service ends, the job
saves its progress and stops.
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
    """The job's end of the connection."""

    def __init__(self, connection: socket.socket) -> None:
        self._socket = connection
        self._lock = threading.Lock()

    @classmethod
    def from_environment(cls) -> "Channel | None":
        """Return the connection to the service; None if the job was started manually."""
        number = os.environ.pop(CHANNEL_VARIABLE, "")
        if not number:
            return None
        os.set_inheritable(int(number), False)
        return cls(socket.socket(fileno=int(number)))

    @contextmanager
    def serving(self, run: JobRun) -> Iterator[None]:
        """Obey the service while the block runs. Then send the report, and whether the job has
        finished."""
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
        """Send the progress of the job, and the reason of a pause."""
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
            pass  # the service has ended; the other thread notices that

    def _obey(self, run: JobRun) -> None:
        with self._socket.makefile("rb") as lines:
            try:
                for line in lines:
                    with _FAILURES.noted("a request of the service"):
                        self._obey_one(run, json.loads(line)["order"])
            except OSError:
                pass  # same as the end of the input
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
