"""Every place of the product that has a durable effect is met by a simulated power cut.

A list of effects that is kept by hand would be out of date. So the places are read from the
product's sources, and those that the scenarios come by are noted while they run.
"""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.crash.exploring import SCENARIOS, file_system_for_states, record
from tests.crash.sites import (
    Met,
    WatchfulDisk,
    effects_in_volumes,
    sites_in_volumes,
    sites_of,
    unmet,
)
from tests.support.simulated_disk import COMPOSED, RecordingDisk
from tests.support.sources import ROOT, parse

pytestmark = [pytest.mark.root, pytest.mark.timeout(900)]

ONE_CALL = "one call, the steps of which are met elsewhere"

BY_A_THREAD = "a thread calls it, and no line of the product: the scenario of a mount comes by"

CACHED = "a cache of chunks that is verified at each read, and may be torn or gone"

IN_A_CLUSTER = "of a volume on a store in a cluster: tests/jobs/cluster dies after each step"

OF_NO_GAIN = "sketches, which the next run makes again where they are wanted"

BY_A_USER = "by users other than root, through a mount (tests/fuse_stub/test_undelete.py)"

OF_A_NEW_FILE = "of a new file (tests/deleted/test_undelete.py)"

BEFORE_AN_ERROR = "an older version's mark, taken back by one rename (test_collisions.py)"

OF_NO_USE = "what nothing needs any more, in any order (tests/shared/test_move.py)"

BY_ITS_CALLS = "passes the door to an object; the calls of this object have the effects"

ELSEWHERE = {
    "dedupd_core.stub.transition.open_stub door": BY_ITS_CALLS,
    "dedupd_core.store.sketches.remove_sketches unlink": OF_NO_GAIN,
    "dedupd_core.rados.reading.disk_cache.__init__ door": CACHED,
    "dedupd_core.rados.reading.disk_cache._new_segment create": CACHED,
    "dedupd_core.rados.reading.disk_cache._write write_at": CACHED,
    "dedupd_core.rados.reading.disk_cache._unlink unlink": CACHED,
    "dedupd_core.rados.reading.volume_store._cache_in make_dir": CACHED,
    "dedupd_core.rados.reading.volume_store.bind replace_file": ONE_CALL,
    "jobs.importing.run sync_file_system": "a copy until the command says that it is there",
    "jobs.cluster.gc._drop sync_file_system": IN_A_CLUSTER,
    "jobs.cluster.receiving.flush sync_file_system": IN_A_CLUSTER,
    "jobs.cluster.session.writing sync_file_system": IN_A_CLUSTER,
    "jobs.move._roll_back remove_all": OF_NO_USE,
    "jobs.move._drop_derived remove_all": OF_NO_USE,
    "fuse_stub.mounted_volume.__init__ door": BY_A_THREAD,
    "dedupd.cli.policy.saved replace_file": ONE_CALL,
    "fuse_stub.commit_lane._take_back sync_file": BY_A_THREAD,
    "fuse_stub.bulk_commits._take_back sync_file_system": BY_A_THREAD,
    "fuse_stub.deleted.noting._sync_once sync_file": BY_A_THREAD,
    "dedupd_core.deleted.undelete._made_directory make_dir": BY_A_USER,
    "dedupd_core.deleted.undelete._unmark set_mode": BY_A_USER,
    "dedupd_core.system.tree.takeover.drop_inherited_acls remove_attribute_of": OF_A_NEW_FILE,
    "dedupd_core.system.tree.takeover.keep_group set_owner": BY_A_USER,
    "dedupd_core.deleted.writer._begin unlink": "a log without a header, which had no room",
    "dedupd_core.volume.enabling.enable.refuse_collisions rename": BEFORE_AN_ERROR,
    "dedupd_core.volume.enabling.enable.refuse_collisions sync_dir": BEFORE_AN_ERROR,
    "fuse_stub.namespace.rename rename": "what a user asks for, one system call",
    "fuse_stub.namespace.rename rename_new": "what a user asks for, one system call",
    "fuse_stub.namespace.rename exchange": "what a user asks for, one system call",
    "fuse_stub.namespace.rename rename_leaving": "what a user asks for, one system call",
}
"""Places that no scenario comes by, each for a reason."""


@pytest.fixture(scope="module")
def watched(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[set[Met], set[str]]]:
    """What all scenarios meet: places, and effects that come from native code."""
    met: set[Met] = set()
    native: set[str] = set()
    with file_system_for_states(tmp_path_factory.mktemp("sites")) as fast:
        for scenario in SCENARIOS.values():
            disk = WatchfulDisk()
            record(fast / "root", scenario, make_disk=lambda disk=disk: disk)  # type: ignore[misc]
            met |= disk.met
            native |= disk.native
    yield met, native


def test_every_effect_of_the_product_is_met(watched: tuple[set[Met], set[str]]) -> None:
    sites = sites_in_volumes()
    missed = unmet(sites, watched[0])
    print(f"\n{len(sites) - len(missed)} of {len(sites)} places with effects are met")
    assert [str(site) for site in missed if site.name not in ELSEWHERE] == []
    assert ELSEWHERE.keys() - {site.name for site in missed} == set(), "met, after all"


def test_every_effect_of_native_code_is_met(watched: tuple[set[Met], set[str]]) -> None:
    source = Path(ROOT / "native/src/system/effects.rs").read_text()
    trait = source.partition("pub trait Effects")[2].partition("\n}")[0]
    effects = set(re.findall(r"^    fn (\w+)", trait, re.MULTILINE)) - {"threads"}
    assert len(effects) > 5
    assert watched[1] == effects


def test_the_recording_disk_knows_every_effect() -> None:
    assert vars(RecordingDisk).keys() >= effects_in_volumes() - COMPOSED


def test_a_place_with_an_effect_is_found() -> None:
    source = "class A:\n  def f(self):\n    self._disk.punch(1,\n      2, 3)\n    g(disk.door)"
    found = list(sites_of(parse("jobs.sample", source)))
    assert [(s.function, s.effect, s.first_line, s.last_line) for s in found] == [
        ("f", "punch", 3, 4),
        ("f", "door", 5, 5),
    ]
    assert unmet(found, {Met("jobs.sample", 4, "punch"), Met("jobs.other", 5, "door")}) == found[1:]
