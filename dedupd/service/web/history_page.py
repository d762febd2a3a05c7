"""A page of the history of runs, sent while it is read, because reports are long."""

import json
from collections.abc import Sequence
from typing import Any

from aiohttp import web

from dedupd.service.served_volume import ServedVolume
from dedupd.service.web.peers import AccessLevel
from dedupd.service.web.views import run_view, time_ns_of

RUNS_MAX = 50
"""Runs per page; ``next`` leads to the older runs."""

RUNS_AT_ONCE = 10
"""Runs in memory for one answer: a report has several kilobytes, and up to a hundred messages."""

Run = tuple[ServedVolume, dict[str, Any]]


class HistoryPage:
    """The last runs of some volumes that started before a time, newest first."""

    def __init__(
        self, volumes: Sequence[ServedVolume], count: int, before_ns: int | None, right: AccessLevel
    ) -> None:
        self._volumes = volumes
        self._count = count
        self._before_ns = before_ns
        self._right = right

    async def stream(self, request: web.Request, head: dict[str, Any]) -> web.StreamResponse:
        """Answer with ``head``, ``history`` and ``next``: the ``before`` of the next page."""
        runs = await self._next(self._count)
        response = web.StreamResponse()
        response.content_type = "application/json"
        response.force_close()
        await response.prepare(request)
        await response.write(json.dumps(head)[:-1].encode() + b',\n"history": [')
        written = 0
        while runs:
            for volume, run in runs:
                shown = json.dumps(run_view(run, volume.config.path, self._right))
                await response.write(f"{',' if written else ''}\n{shown}".encode())
                written += 1
            self._before_ns = time_ns_of(runs[-1][1])
            if written >= self._count:
                break
            runs = await self._next(self._count - written)
        following = self._before_ns if runs else None
        await response.write(f'],\n"next": {json.dumps(following)}}}\n'.encode())
        await response.write_eof()
        return response

    async def _next(self, count: int) -> list[Run]:
        """Return some of the next runs. Runs that started at the same instant as the last of them
        are included."""
        count = min(count, RUNS_AT_ONCE)
        if not count:
            return []
        found: list[Run] = []
        for volume in self._volumes:
            runs = await volume.remember(lambda one: one.runs(count, self._before_ns)) or []
            found += [(volume, run) for run in runs]
            found.sort(key=lambda one: -time_ns_of(one[1]))
            if len(found) > count:
                last_ns = time_ns_of(found[count - 1][1])
                found = [one for one in found if time_ns_of(one[1]) >= last_ns]
        return found
