"""The configuration of the service: what it means, and what is said about a wrong one."""

import os
from pathlib import Path

import pytest
import tomlkit
from hypothesis import given, settings
from hypothesis import strategies as st

from dedupd.service.config import (
    SERVICE_KEYS,
    VOLUME_KEYS,
    Listen,
    Readers,
    ServiceConfig,
    VolumeConfig,
    load_config,
    parse_config,
    parse_volume,
)
from dedupd.service.volume_registry import register, unnamed, volume_text
from dedupd_core.errors import ConfigurationError
from dedupd_core.system.disk import Disk
from dedupd_core.units import MIB
from fuse_stub.mounts.mount_options import parse_options
from tests.support.malformed import malformed

WHERE = "/etc/dedupd/dedupd.toml"
DOCUMENT = Path(__file__).resolve().parents[2] / "docs/guide/service.md"


def test_an_empty_file_is_the_default() -> None:
    assert parse_config("", WHERE) == ServiceConfig()


def test_every_key_can_be_set() -> None:
    config = parse_config(
        """
        socket = "/run/other.sock"
        group = "root"
        readers = "group"
        listen = "[::1]:9247"
        jobs_max = 2
        unmount_on_stop = false
        [[volume]]
        path = "/srv/share/"
        [[volume]]
        path = "/srv/.other"
        mountpoint = "/mnt/other"
        cache = "128 MiB"
        """,
        WHERE,
    )
    assert config == ServiceConfig(
        socket="/run/other.sock",
        group="root",
        readers=Readers.GROUP,
        listen=Listen("::1", 9247),
        jobs_max=2,
        unmount_on_stop=False,
        volumes=(
            VolumeConfig("/srv/share", "/srv/share"),
            VolumeConfig("/srv/.other", "/mnt/other", 128 * MIB),
        ),
    )


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("socket = 3", "socket = 3: write a text in quotes"),
        ('socket = "s.sock"', "socket = 's.sock': write an absolute path"),
        (f'socket = "/{"x" * 120}"', "at most 100 bytes"),
        ('group = "no-such-group-here"', "this group does not exist"),
        ('readers = "nobody"', 'write "everyone" or "group"'),
        ('listen = "0.0.0.0:80"', "write an address of this machine"),
        ('listen = "127.0.0.1"', "write an address of this machine"),
        ("jobs_max = 0", "write a whole number from 1 to 64"),
        ("unmount_on_stop = 1", "write true or false"),
        ("jobsmax = 1", "unknown key 'jobsmax'; use one of socket, group"),
        ("volume = 1", "write each volume as a table"),
        ("[[volume]]", "a volume has no path"),
        ('[[volume]]\npath = "share"', "path = 'share': write an absolute path"),
        ('[[volume]]\npath = "/a"\ncache = "1k"', "cache = '1k': write at least 1 MiB"),
        ('[[volume]]\npath = "/a"\nname = "a"', "unknown key 'name'; use one of path"),
        ('[[volume]]\npath="/a"\n[[volume]]\npath="/a"\ncache="2M"', "listed twice"),
        ('[[volume]]\npath="/a"\n[[volume]]\npath="/b"\nmountpoint="/a"', "used by two volumes"),
        ("== broken", "not valid TOML"),
    ],
)
def test_an_error_names_file_key_value_and_remedy(text: str, reason: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        parse_config(text, WHERE)
    assert str(caught.value).startswith(f"{WHERE}: ")
    assert reason in str(caught.value)


paths = st.from_regex(r"/[a-z]{1,8}(/[a-z ]{0,4}[a-z]){0,3}", fullmatch=True)


@given(
    st.builds(
        VolumeConfig,
        paths,
        paths,
        st.integers(1, 4096).map(lambda m: m * MIB),
        st.sampled_from(["", "ro", "nodev,noatime"]).map(parse_options),
        st.just("") | st.uuids().map(str),
    )
)
def test_a_volume_that_is_written_is_read_back(volume: VolumeConfig) -> None:
    assert parse_volume(tomlkit.parse(volume_text(volume)).unwrap(), WHERE) == volume


def test_what_enable_registers_is_on_disk_before_it_has_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An empty file, which a power cut may leave, keeps the service from starting, for all."""
    config = tmp_path / "dedupd.toml"
    config.write_text("")
    (tmp_path / "volumes.d").mkdir()
    monkeypatch.setenv("DEDUPD_CONFIG", str(config))
    synced = []
    for step in ("sync_file", "sync_dir"):
        monkeypatch.setattr(
            Disk, step, lambda _, fd: synced.append(Path(os.readlink(f"/proc/self/fd/{fd}")).name)
        )
    name = "00000000-0000-4000-8000-00000000002a"
    assert register("/srv/share", name)
    assert synced == [f"{name}.toml.new", "volumes.d"]
    assert [volume.path for volume in load_config(str(config)).volumes] == ["/srv/share"]
    (tmp_path / "volumes.d" / f"{name}.toml").write_text("")
    with pytest.raises(ConfigurationError, match="a volume has no path"):
        load_config(str(config))


def test_a_volume_can_be_taken_out_of_the_configuration_whose_comments_stay(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = tmp_path / "dedupd.toml"
    text = '# ours\njobs_max = 2  # disks\n\n[[volume]]\npath = "/a/"\n\n[[volume]]\npath = "/b"\n'
    config.write_text(text)
    config.chmod(0o640)
    monkeypatch.setenv("DEDUPD_CONFIG", str(config))
    assert not unnamed("/c")
    assert config.read_text() == text
    assert unnamed("/a")
    assert [volume.path for volume in load_config(str(config)).volumes] == ["/b"]
    assert unnamed("/b")
    assert load_config(str(config)).volumes == ()
    assert config.read_text().startswith("# ours\njobs_max = 2  # disks\n")
    assert config.stat().st_mode & 0o777 == 0o640


def test_volumes_lie_in_files_of_their_own(tmp_path: Path) -> None:
    (tmp_path / "dedupd.toml").write_text('[[volume]]\npath = "/a"\n')
    (tmp_path / "volumes.d").mkdir()
    (tmp_path / "volumes.d/b.toml").write_text('path = "/b"\n')
    (tmp_path / "volumes.d/c.toml.new").write_text("half written")
    config = load_config(str(tmp_path / "dedupd.toml"))
    assert [volume.path for volume in config.volumes] == ["/a", "/b"]
    (tmp_path / "volumes.d/d.toml").write_text("path = 4")
    with pytest.raises(ConfigurationError, match=r"volumes.d/d.toml: path = 4: write a text"):
        load_config(str(tmp_path / "dedupd.toml"))


@pytest.mark.parametrize("content", [b"\xff\xfe", b"a" * (2 << 20), b"[" * 100_000])
def test_a_file_that_is_no_configuration_is_refused(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "dedupd.toml").write_bytes(content)
    with pytest.raises(ConfigurationError, match=r"dedupd\.toml: "):
        load_config(str(tmp_path / "dedupd.toml"))


def test_a_file_that_is_not_there_says_what_an_empty_one_does(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="create it, even if empty, to serve the volumes"):
        load_config(str(tmp_path / "dedupd.toml"))


# --- fuzz -------------------------------------------------------------------------------------

documents = malformed(SERVICE_KEYS, VOLUME_KEYS)


def is_refused_or_valid(text: str) -> None:
    try:
        config = parse_config(text, WHERE)
    except ConfigurationError as error:
        assert str(error).startswith(f"{WHERE}: ")
        assert len(str(error)) < 1500
    else:
        assert isinstance(config, ServiceConfig)


@settings(max_examples=100)
@given(documents)
def test_a_malformed_configuration_is_refused(text: str) -> None:
    is_refused_or_valid(text)


def test_a_long_mount_option_makes_no_long_message() -> None:
    is_refused_or_valid(f'[[volume]]\npath = "/a"\noptions = "/{"x" * 5000}"')


@pytest.mark.slow
@settings(max_examples=10_000)
@given(documents)
def test_ten_thousand_malformed_configurations_are_refused(text: str) -> None:
    is_refused_or_valid(text)


def test_the_documentation_names_every_key() -> None:
    text = DOCUMENT.read_text()
    for key in (*SERVICE_KEYS, *VOLUME_KEYS):
        assert f"| `{key}` |" in text
