"""The ways to tell: a command, the machine's sendmail, a webhook; each is a process of its own.

So whatever one of them does, it can be ended, and under systemd it has the rights of the machine
and not those that are left to the service.
"""

import asyncio
import json
import os
import shutil
import signal
from asyncio.subprocess import DEVNULL, PIPE
from dataclasses import dataclass
from email.message import EmailMessage
from email.policy import SMTP

from dedupd.service.notices.problem import Notice
from dedupd.service.systemd.slice import is_of_systemd
from dedupd_core.system.processes import child_environment

DELIVERY_S_MAX = 60.0
"""A process that takes longer is ended, and the notice tried again later."""

ERROR_BYTES_MAX = 2000


@dataclass(frozen=True, slots=True)
class Way:
    """A way to tell: a name, the program that is started, and to whom it mails, if it does."""

    name: str
    command: tuple[str, ...]
    mail_to: str = ""

    def text_of(self, notice: Notice) -> bytes:
        """What the process reads."""
        if not self.mail_to:
            return json.dumps(notice.to_json()).encode() + b"\n"
        mail = EmailMessage(policy=SMTP.clone(linesep="\n"))
        mail["To"] = self.mail_to
        mail["Subject"] = notice.subject
        mail["Auto-Submitted"] = "auto-generated"
        mail.set_content(f"{notice.problem.message}\n")
        return mail.as_bytes()


async def deliver(way: Way, notice: Notice, length_s: float = DELIVERY_S_MAX) -> str:
    """Tell by one way; why that failed, empty where it did not."""
    try:
        process = await asyncio.create_subprocess_exec(
            *_outside(),
            *way.command,
            stdin=PIPE,
            stdout=DEVNULL,
            stderr=PIPE,
            env=child_environment(),
            start_new_session=True,
            cwd="/",
        )
    except OSError as error:
        return f"{way.command[0]}: {os.strerror(error.errno or 0)}"
    try:
        async with asyncio.timeout(length_s):
            _, errors = await process.communicate(way.text_of(notice))
    except TimeoutError:
        return f"{way.command[0]}: not finished after {length_s:.0f} s"
    except OSError as error:  # it has closed its input
        errors = str(error).encode()
    finally:
        # Its children too: one that holds the line would hold this up.
        try:
            os.killpg(process.pid, signal.SIGKILL)
        except OSError:
            pass
        await process.wait()
    if process.returncode == 0:
        return ""
    said = errors[-ERROR_BYTES_MAX:].decode("utf-8", "replace").strip()
    return said or f"{way.command[0]}: exited with status {process.returncode}"


def _outside() -> list[str]:
    """The words that start a process outside of the service's unit, whose rights do not suffice for
    a mail, or a network."""
    if not is_of_systemd() or shutil.which("systemd-run") is None:
        return []
    return ["systemd-run", "--quiet", "--collect", "--wait", "--pipe", "--"]
