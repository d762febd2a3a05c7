"""The configuration of the service: what it means, and what is said about a wrong one."""

from collections.abc import Iterable
from pathlib import Path

import pytest
import tomlkit
from hypothesis import given, settings
from hypothesis import strategies as st

from dedupd.errors import ConfigurationError
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
    volume_text,
)
from dedupd.units import MIB

WHERE = "/etc/dedupd/dedupd.toml"
DOCUMENT = Path(__file__).resolve().parent.parent / "docs/service.md"


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
        ('group = "no-such-group-here"', "there is no such group"),
        ('readers = "nobody"', 'write "everyone" or "group"'),
        ('listen = "0.0.0.0:80"', "write an address of this machine alone"),
        ('listen = "127.0.0.1"', "write an address of this machine alone"),
        ("jobs_max = 0", "write a whole number from 1 to 64"),
        ("unmount_on_stop = 1", "write true or false"),
        ("jobsmax = 1", "unknown key 'jobsmax'; the keys are socket, group"),
        ("volume = 1", "write each volume as a table"),
        ("[[volume]]", "a volume has no path"),
        ('[[volume]]\npath = "share"', "path = 'share': write an absolute path"),
        ('[[volume]]\npath = "/a"\ncache = "1k"', "cache = '1k': write 1 MiB at least"),
        ('[[volume]]\npath = "/a"\nname = "a"', "unknown key 'name'; the keys are path"),
        ('[[volume]]\npath="/a"\n[[volume]]\npath="/a"\ncache="2M"', "named twice"),
        ('[[volume]]\npath="/a"\n[[volume]]\npath="/b"\nmountpoint="/a"', "of two volumes"),
        ("== broken", "not valid TOML"),
    ],
)
def test_an_error_names_file_key_value_and_remedy(text: str, reason: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        parse_config(text, WHERE)
    assert str(caught.value).startswith(f"{WHERE}: ")
    assert reason in str(caught.value)


paths = st.from_regex(r"/[a-z]{1,8}(/[a-z ]{0,4}[a-z]){0,3}", fullmatch=True)


@given(st.builds(VolumeConfig, paths, paths, st.integers(1, 4096).map(lambda m: m * MIB)))
def test_a_volume_that_is_written_is_read_back(volume: VolumeConfig) -> None:
    assert parse_volume(tomlkit.parse(volume_text(volume)).unwrap(), WHERE) == volume


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
    with pytest.raises(ConfigurationError, match="an empty one serves the volumes"):
        load_config(str(tmp_path / "dedupd.toml"))


# --- fuzz -------------------------------------------------------------------------------------

# Lines put together from pieces, and not values built one by one: drawing those took 50 times as
# long as the parser.
VALUES = (
    *("true", "0", "1", "-1", "64", "9223372036854775807", "1" * 400, "0.5", "1e999", "nan"),
    *('""', '"/a"', '"/a/../b"', '"/b"', '"a"', '"/\\u0000"', '"/\\u00e9\\t"', f'"/{"x" * 5000}"'),
    *('"127.0.0.1:80"', '"127.0.0.1:99999"', '"[::1]:1"', '":"', '"%lo:1"', '"0.0.0.0:80"'),
    *('"1 MiB"', '"-1 MiB"', '"9e99 GiB"', '"group"', '"everyone"', '"root"', '"\\U0010ffff"'),
    *("[]", "[1, [2]]", "{}", '{ path = "/a" }', "{ a = { b = [{}] } }", '[{ path = "/a" }]'),
    *("1979-05-27", "1979-05-27T07:32:00Z"),
)
BROKEN = (
    *(
        "0x1g",
        '"\\ud800"',
        "'/\x01'",
        "[" * 500,
        "{" * 500,
        "25:61:61",
        '"',
        "'''",
        '"""\n"',
        "",
        "#",
    ),
    *("\x00", "[volume]", "[[volume.path]]", "[[volume]]", "[", "]", "\r", "\ufeff", "'\\' = 1"),
)


def rows(names: Iterable[str]) -> st.SearchStrategy[str]:
    """Lines of a table, each key once."""
    pairs = st.tuples(st.sampled_from([*names, "x"]), st.sampled_from(VALUES))
    some = st.lists(pairs, unique_by=lambda pair: pair[0], max_size=3)
    return some.map(lambda chosen: "".join(f"{key} = {value}\n" for key, value in chosen))


well_formed = st.builds(
    "{}{}".format, rows([*SERVICE_KEYS, "volume"]), rows(VOLUME_KEYS).map("[[volume]]\n{}".format)
)


@st.composite
def broken(draw: st.DrawFn) -> str:
    """A configuration in which something stands in place of a piece."""
    text = draw(well_formed)
    start = draw(st.integers(0, 60))
    return text[:start] + draw(st.sampled_from(BROKEN)) + text[start + draw(st.integers(0, 5)) :]


documents = st.text(max_size=60) | broken() | well_formed | rows(SERVICE_KEYS)


def is_refused_or_valid(text: str) -> None:
    try:
        config = parse_config(text, WHERE)
    except ConfigurationError as error:
        assert str(error).startswith(f"{WHERE}: ")
        assert len(str(error)) < 1000
    else:
        assert isinstance(config, ServiceConfig)


@settings(max_examples=100)
@given(documents)
def test_a_malformed_configuration_is_refused(text: str) -> None:
    is_refused_or_valid(text)


@pytest.mark.slow
@settings(max_examples=10_000)
@given(documents)
def test_ten_thousand_malformed_configurations_are_refused(text: str) -> None:
    is_refused_or_valid(text)


def test_the_documentation_names_every_key() -> None:
    text = DOCUMENT.read_text()
    for key in (*SERVICE_KEYS, *VOLUME_KEYS):
        assert f"| `{key}` |" in text
