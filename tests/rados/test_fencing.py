"""A host that is stopped past its lease, and goes on when another has taken over, harms nothing."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from dedupd_core.errors import StoreUnreachable, WriterFenced
from dedupd_core.format.cluster.address import parse_address
from dedupd_core.format.cluster.objects import FileId
from dedupd_core.rados.lease import lease_state
from tests.support.ceph import REPOSITORY, wait_for
from tests.support.rados_hosts import Host, Site, new_file, random_content

A, B, C = random_content(1), random_content(2), random_content(3)
LEASE_S = 1.0


@contextmanager
def late_host(site: Site) -> Iterator[subprocess.Popen[str]]:
    """A process with a session on volume ``a``, which prepares a file and waits for a line."""
    process = subprocess.Popen(
        [sys.executable, "-m", __name__, str(site.address), str(site.directory)],
        cwd=REPOSITORY,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == "prepared\n"
        yield process
    finally:
        process.kill()
        process.communicate()


def main(address: str, directory: str) -> None:
    """Prepare, wait, and then try each change whatever the last one said."""
    host = Host(parse_address(address), Path(directory), "a", lease_s=LEASE_S)
    host.put({1: A})
    prepared = host.writer.prepare([new_file(FileId(2, 1), B)])
    print("prepared", flush=True)
    sys.stdin.readline()
    # As if it looked at no clock: what stops it then is the cluster.
    host.store.cluster.permit = lambda: None
    chunks = [one.chunk for one in new_file(FileId(3, 1), C).chunks]
    said = []
    for attempt in (
        lambda: host.writer.commit(prepared),
        lambda: host.writer.chunks.put(chunks[0], ["0" * 32]),
        lambda: host.writer.intents.set({"0" * 32: FileId(3, 1)}),
    ):
        try:
            attempt()
            said.append("done")
        except (WriterFenced, StoreUnreachable) as error:
            said.append(type(error).__name__)
    print(json.dumps(said), flush=True)
    os._exit(0)


def test_a_host_that_comes_back_late_is_refused(site: Site) -> None:
    with late_host(site) as process:
        process.send_signal(signal.SIGSTOP)
        volume = next(iter(site.store.volumes()))
        wait_for(lambda: lease_state(site.cluster, volume).holder is None, "end of the lease", 10)
        recovery = site.store.recover(volume)
        assert (recovery.retired, recovery.left) == (1, 0)
        assert site.assert_whole().candidates == 3
        process.send_signal(signal.SIGCONT)
        assert process.stdin is not None and process.stdout is not None
        process.stdin.write("\n")
        process.stdin.flush()
        assert json.loads(process.stdout.readline()) == ["WriterFenced"] * 3
    site.assert_whole()
    with site.host("a") as host:
        assert host.read(1) == A
        host.put({2: B})


if __name__ == "__main__":
    main(*sys.argv[1:])
