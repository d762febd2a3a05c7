"""Opening a volume: found from anywhere, refused with a reason, and locked for one."""

import json
import os
from pathlib import Path

import pytest

from dedupd_core.config.policy import Policy
from dedupd_core.errors import Busy, Damaged, NotAVolume, UnknownFormat
from dedupd_core.format.checked_json import check_of
from dedupd_core.system import mount_table
from dedupd_core.system.mount_table import parse_mountinfo
from dedupd_core.system.paths import show_path
from dedupd_core.volume.volume import Volume
from tests.support.lab import Lab, descriptors, descriptors_to_begin_with, flip_bit, lab_in, new_lab


def test_a_directory_that_is_no_volume_is_refused_with_the_command_to_use(tmp_path: Path) -> None:
    with pytest.raises(NotAVolume, match=r"not a volume; create one with `dedupd enable .*`"):
        Volume.open(str(tmp_path))
    with pytest.raises(NotAVolume, match="no such directory"):
        Volume.open(str(tmp_path / "none"))


@pytest.mark.parametrize(
    ("path", "below"),
    [("", b""), ("file", b"file"), ("sub/file", b"sub/file"), ("sub/../file", b"file"), (".", b"")],
)
def test_a_volume_is_found_from_a_path_in_its_tree(tmp_path: Path, path: str, below: bytes) -> None:
    with lab_in(tmp_path) as lab:
        volume, found = Volume.locate(os.path.join(lab.root, path))
        with volume:
            assert (volume.root, found) == (str(lab.root), below)


def test_a_path_in_no_volume_is_refused(tmp_path: Path) -> None:
    with pytest.raises(NotAVolume, match="not in a volume"):
        Volume.locate(str(tmp_path / "file"))


def test_what_is_no_volume_is_refused_with_the_remedy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mount_table, "volumes", list)
    with pytest.raises(NotAVolume, match="`dedupd enable DIRECTORY` creates one"):
        Volume.locate(str(tmp_path / "sub"))
    mounted = mount_table.Mount("some-uuid", str(tmp_path / "share"))
    monkeypatch.setattr(mount_table, "volumes", lambda: [mounted])
    for look in (Volume.locate, Volume.open):
        with pytest.raises(NotAVolume, match=rf"did you mean {tmp_path}/share\?"):
            look(str(tmp_path / "shaer"))


def test_a_name_that_is_not_utf8_is_found(tmp_path: Path) -> None:
    with lab_in(tmp_path) as lab:
        volume, below = Volume.locate(str(lab.root / "odd \udcff name"))
        with volume:
            assert below == b"odd \xff name"
            assert show_path(below) == "odd \\xff name"


def test_opening_and_closing_leaves_no_descriptor(tmp_path: Path) -> None:
    with lab_in(tmp_path) as lab:
        lab.put("file", os.urandom(200_000))
        lab.optimize()
        lab.read("file")
        before = descriptors_to_begin_with()
        for _ in range(5):
            lab.read("file")
            lab.optimize()
            lab.verify_clean()
            lab.unoptimize()
        assert descriptors() == before


def damage_volume_file(lab: Lab, **changes: object) -> None:
    """Change values as somebody would who knows about the checksum."""
    path = lab.base / "volume.json"
    fields = {**json.loads(path.read_text()), **changes}
    del fields["check"]
    path.write_text(json.dumps({**fields, "check": check_of(fields)}))


@pytest.mark.parametrize(
    ("found", "remedy"),
    [
        (1, " and no longer 1; run `dedupd disable` of the version that wrote it, then"),
        (4, "; use the version of dedupd that wrote it, or a newer one"),
    ],
)
def test_another_format_is_refused_by_name(tmp_path: Path, found: int, remedy: str) -> None:
    lab = new_lab(tmp_path / "volume")
    damage_volume_file(lab, format=found)
    before = descriptors_to_begin_with()
    with pytest.raises(
        UnknownFormat,
        match=rf"volume.json: volume format {found}; this program reads 3{remedy}",
    ):
        Volume.open(str(lab.root))
    assert descriptors() == before


@pytest.mark.parametrize(
    "content",
    [
        "",
        "{",
        "[]",
        "null",
        "1",
        '"x"',
        "{}",
        '{"format": 3}',
        '{"format": 3, "chunking": {"x": 1}}',
    ],
)
def test_a_broken_volume_file_is_damage_with_a_name(tmp_path: Path, content: str) -> None:
    lab = new_lab(tmp_path / "volume")
    (lab.base / "volume.json").write_text(content)
    before = descriptors_to_begin_with()
    with pytest.raises(Damaged, match=r"volume.json: not a valid volume file"):
        Volume.open(str(lab.root))
    assert descriptors() == before


@pytest.mark.parametrize(
    "changes",
    [
        {"uuid": "not one"},
        {"uuid": 5},
        {"fingerprint": "md5"},
        {"attribute": 7},
        {"attribute": "security.capability"},
        {"unknown": 1},
    ],
)
def test_wrong_values_in_the_volume_file_are_damage(
    tmp_path: Path, changes: dict[str, object]
) -> None:
    lab = new_lab(tmp_path / "volume")
    damage_volume_file(lab, **changes)
    with pytest.raises(Damaged, match=r"volume.json: not a valid volume file"):
        Volume.open(str(lab.root))


def test_any_flipped_bit_of_the_volume_file_is_noticed(tmp_path: Path) -> None:
    """Or changes nothing that is said: white space, for one."""
    lab = new_lab(tmp_path / "volume")
    path = lab.base / "volume.json"
    with lab.opened() as volume:
        parameters = volume.parameters
    for bit in range(path.stat().st_size * 8):
        flip_bit(path, bit // 8, bit % 8)
        try:
            with lab.opened() as volume:
                assert volume.parameters == parameters
        except (Damaged, UnknownFormat):
            pass
        flip_bit(path, bit // 8, bit % 8)


def test_a_volume_without_a_policy_file_has_the_default(tmp_path: Path) -> None:
    with lab_in(tmp_path) as lab:
        (lab.base / "policy.toml").unlink()
        with lab.opened() as volume:
            assert volume.policy() == Policy()


@pytest.mark.parametrize("lock", ["job_lock", "mount_lock"])
def test_a_lock_is_held_by_one_and_free_again_afterwards(tmp_path: Path, lock: str) -> None:
    with lab_in(tmp_path) as lab, lab.opened() as one, lab.opened() as other:
        busy = pytest.raises(Busy, match=str(lab.root))
        with getattr(one, lock)(), busy, getattr(other, lock)():
            pass
        with getattr(other, lock)():
            pass


def test_a_job_that_comes_after_the_end_of_a_volume_is_refused(tmp_path: Path) -> None:
    lab = new_lab(tmp_path / "volume")
    with lab.opened() as volume:
        (lab.base / "volume.json").rename(lab.base / "disabling")
        with pytest.raises(NotAVolume, match="is being disabled"), volume.job_lock():
            pass


def test_mount_points_with_odd_names_are_read() -> None:
    text = (
        "36 35 98:0 / /srv/with\\040space rw,noatime master:1 - ext4 /dev/root rw\n"
        "37 36 0:50 / /srv/back\\134slash rw - fuse.dedupd dedupd:uuid rw\n"
        "broken line\n"
    )
    assert parse_mountinfo(text) == [
        ("36", "98:0", "/", "/srv/with space", "ext4", "/dev/root", {"rw"}),
        ("37", "0:50", "/", "/srv/back\\slash", "fuse.dedupd", "dedupd:uuid", {"rw"}),
    ]
