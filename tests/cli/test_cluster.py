"""``dedupd cluster``, and a volume on a store in a cluster from enable to disable."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from dedupd_core.format.cluster.address import StoreAddress
from dedupd_core.rados.reading.volume_store import bind
from dedupd_core.rados.store import RadosStore
from dedupd_core.system.disk import Disk
from tests.support.ceph_fixtures import address, ceph
from tests.support.lab import REPOSITORY, new_lab, noise

__all__ = ["address", "ceph"]
pytestmark = pytest.mark.root
POLICY = ("--min-age", "0s", "--min-size", "1")


def dedupd(*arguments: object, status: int = 0) -> str:
    """The output of a command, in a process of its own, as an administrator runs it."""
    command = [sys.executable, "-m", "dedupd.cli.main", *map(str, arguments)]
    result = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, check=False)
    assert result.returncode == status, result.stdout + result.stderr
    return result.stdout


@pytest.mark.slow
def test_a_volume_on_a_store_in_a_cluster(address: StoreAddress, tmp_path: Path) -> None:
    root, content = tmp_path / "volume", noise(2_000_000, 1)
    root.mkdir()
    (root / "file").write_bytes(content)
    (root / "copy").write_bytes(content)
    dedupd("cluster", "create", address)
    assert "already" in dedupd("cluster", "create", address, "--json", status=2)
    dedupd("enable", root, "--store", address, *POLICY, "--force")
    try:
        stored = json.loads(dedupd("run", "optimize", root, "--json"))
        assert stored["files_optimized"] == 2 and stored["freed_bytes"] >= 4_000_000
        assert (root / "file").read_bytes() == (root / "copy").read_bytes() == content
        status = json.loads(dedupd("cluster", "status", address, "--json"))
        (volume,) = status["volumes"]
        assert (volume["bytes"], volume["new_bytes"]) == (4_000_000, 2_000_000)
        assert volume["path"] == str(root) and volume["lease_until_s"] is None
        assert "already present" in dedupd("cluster", "status", address)
        (root / "copy").unlink()
        assert "1 of them deleted" in dedupd("run", "gc", root, "--all-garbage")
        assert "nothing to do" in dedupd("run", "compact", root, "--json", status=2)
        checked = json.loads(dedupd("run", "scrub", root, "--full", "--json"))
        assert checked["chunks"] > 20 and checked["left"] == 0
        assert "0 chunks of the store damaged" in dedupd("run", "scrub", root)
        assert json.loads(dedupd("cluster", "audit", address, "--read", "--json"))["files"] == 1
        assert "rolled back" in dedupd("cluster", "recover", address, volume["volume"])
    finally:
        dedupd("umount", root)
    dedupd("disable", "--unoptimize", root)
    assert [path.name for path in root.iterdir()] == ["file"]
    assert (root / "file").read_bytes() == content
    assert json.loads(dedupd("cluster", "status", address, "--json"))["volumes"] == []


def test_figures_for_prometheus_and_a_move_that_needs_a_stream(
    address: StoreAddress, tmp_path: Path
) -> None:
    lab = new_lab(tmp_path / "volume")
    with RadosStore.create(address) as store, lab.opened() as volume:
        bind(volume.base_fd, "/srv/share", volume.parameters.uuid, store, 0, Disk())
    text = dedupd("cluster", "metrics", address)
    assert "dedupd_cluster_garbage_candidates{" in text and 'path="/srv/share"' in text
    assert "dedupd_cluster_stored_bytes_total{" in text
    assert "dedupd_cluster_gone_volumes{" in text and "dedupd_cluster_audit" not in text
    audited = json.loads(dedupd("run", "--here", "audit", lab.root, "--json"))
    assert (audited["job"], audited["dangling"]) == ("audit", 0)
    assert "Last audited by " in dedupd("run", "--here", "audit", "--if-due", lab.root)
    assert "1 volume checked" in dedupd("run", "--here", "recover", lab.root)
    text = dedupd("cluster", "metrics", address)
    assert "dedupd_cluster_audit_time_seconds{" in text
    assert re.search(r"dedupd_cluster_audit_dangling{.*} 0\.0", text)
    assert "last audit: " in dedupd("cluster", "status", address)
    other = new_lab(tmp_path / "other")
    for path, arguments in ((other.root, ("--store", address)), (lab.root, ("--own",))):
        said = dedupd("store", "move", path, *arguments, "--json", status=2)
        assert "dedupd send" in json.loads(said)["error"]


@pytest.mark.slow
def test_the_commands_that_move_a_volume_by_a_stream(
    address: StoreAddress, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Into a cluster and out of it again, by what ``store move`` says: typed as it is."""
    program = tmp_path / "bin" / "dedupd"
    program.parent.mkdir()
    program.write_text(f'#!/bin/sh\nexec {sys.executable} -m dedupd.cli.main "$@"\n')
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{program.parent}:{os.environ['PATH']}")
    monkeypatch.setenv("PYTHONPATH", str(REPOSITORY))
    dedupd("cluster", "create", address)
    lab = new_lab(tmp_path / "v0")
    contents = {"plain": noise(50_000, 3), "a": noise(400_000, 1), "b": noise(300_000, 1)}
    for name in ("a", "b"):
        lab.put(name, contents[name])
    lab.optimize()
    lab.put("plain", contents["plain"])
    root = lab.root
    for number, store in enumerate([("--store", str(address)), ("--own",)]):
        said = dedupd("store", "move", root, *store, "--json", status=2)
        root = typed(json.loads(said)["error"], tmp_path / f"v{number + 1}")
        try:
            assert {path.name: path.read_bytes() for path in root.iterdir()} == contents
            contents[f"new {number}"] = noise(10_000, number)
            (root / f"new {number}").write_bytes(contents[f"new {number}"])
            dedupd("run", "optimize", root)
        finally:
            dedupd("umount", root)
    dedupd("run", "verify", root)


def typed(error: str, other: Path) -> Path:
    """Type the commands that a message names, in their order."""
    other.mkdir()
    commands = re.findall("`(dedupd [^`]+)`", error)
    assert [command.split()[1] for command in commands] == ["enable", "send", "receive", "mount"]
    commands[0] += " --force --min-age 0s --min-size 1"
    for command in commands:
        subprocess.run(command.replace("OTHER", str(other)), shell=True, check=True)
    return other


def test_an_address_that_leads_nowhere(tmp_path: Path, address: StoreAddress) -> None:
    for store in (f"rados:dedup/none?conf={tmp_path}/none.conf", address):
        (tmp_path / "v").mkdir(exist_ok=True)
        dedupd("enable", tmp_path / "v", "--store", store, *POLICY, "--force", status=2)
        assert not (tmp_path / "v" / ".dedupd").exists()
