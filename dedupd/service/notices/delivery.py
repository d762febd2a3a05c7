"""The notification channels: a command, sendmail, a webhook; each runs in a separate process.

The service can stop such a process at any time. Under systemd, it runs outside of the service's
unit, with the rights of the machine instead of the reduced rights of the service.
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
"""A process that takes longer is killed, and the notification is retried later."""

ERROR_BYTES_MAX = 2000


@dataclass(frozen=True, slots=True)
class DeliveryMethod:
    """A notification channel: its name, its command, and the mail address, if it sends mail."""

    name: str
    command: tuple[str, ...]
    mail_to: str = ""

    def text_of(self, notice: Notice) -> bytes:
        """Return the input of the process."""
        if not self.mail_to:
            return json.dumps(notice.to_json()).encode() + b"\n"
        mail = EmailMessage(policy=SMTP.clone(linesep="\n"))
        mail["To"] = self.mail_to
        mail["Subject"] = notice.subject
        mail["Auto-Submitted"] = "auto-generated"
        mail.set_content(f"{notice.problem.message}\n")
        return mail.as_bytes()


async def deliver(way: DeliveryMethod, notice: Notice, length_s: float = DELIVERY_S_MAX) -> str:
    """Deliver through one channel. Returns the error, or an empty string."""
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
    except OSError as error:  # the process has closed its input
        errors = str(error).encode()
    finally:
        # Also kill its children: a child that keeps the pipe open would block the delivery.
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
    """Return the start of a command that runs outside of the service's unit. The rights of the unit
    are too few for mail or a network."""
    if not is_of_systemd() or shutil.which("systemd-run") is None:
        return []
    return ["systemd-run", "--quiet", "--collect", "--wait", "--pipe", "--"]
