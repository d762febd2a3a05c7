"""The service: mounts, jobs and control, put together."""

import asyncio
import logging
import os
import signal

from dedupd.errors import ConfigurationError
from dedupd.service.config import VolumeConfig, load_config
from dedupd.service.journal import Event, report
from dedupd.service.keeper import MountKeeper
from dedupd.service.notify import Notifier

STOP_EXTENSION_S = 120.0
"""More time to stop than systemd would give: an unmount syncs what was written."""


class Service:
    """One run of ``dedupd serve``. All methods belong to the event loop."""

    def __init__(self, config_path: str, notifier: Notifier) -> None:
        """Raises ConfigurationError."""
        self._config_path = config_path
        self._notifier = notifier
        self.config = load_config(config_path)
        self.keepers: dict[VolumeConfig, MountKeeper] = {}
        self._tasks: dict[VolumeConfig, asyncio.Task[None]] = {}
        self._stop = asyncio.Event()

    async def run(self) -> None:
        """Serve until SIGTERM or SIGINT; SIGHUP reads the configuration again. Raises Busy."""
        loop = asyncio.get_running_loop()
        with _only_service(self.config.socket_path):
            for number in (signal.SIGTERM, signal.SIGINT):
                loop.add_signal_handler(number, self._stop.set)
            loop.add_signal_handler(signal.SIGHUP, lambda: background.add_task(self.reload()))
            async with _Background() as background:
                background.add_task(self._watch())
                self._apply(self.config)
                for keeper in list(self.keepers.values()):
                    await keeper.settled.wait()
                self._notifier.ready(self._status())
                report(Event.SERVICE_READY, f"dedupd serves {self._status()}", pid=os.getpid())
                await self._stop.wait()
                self._notifier.stopping()
                report(Event.SERVICE_STOPPING, "dedupd is stopping")
                await self._drain()

    async def reload(self) -> None:
        """Read the configuration again. Raises ConfigurationError; then the old one stays."""
        self._notifier.reloading()
        try:
            config = load_config(self._config_path)
            if config.socket_path != self.config.socket_path or config.listen != self.config.listen:
                raise ConfigurationError(
                    f"{self._config_path}: socket and listen count from the next start on"
                )
            self._apply(config)
            report(Event.RELOADED, f"{self._config_path} was read again: {self._status()}")
        except ConfigurationError as error:
            report(
                Event.RELOAD_FAILED, f"the configuration stays as it was: {error}", logging.ERROR
            )
            raise
        finally:
            self._notifier.ready(self._status())
