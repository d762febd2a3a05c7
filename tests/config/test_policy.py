"""The policy: what it takes and leaves, and errors that name file, key and reason."""

import re
from pathlib import Path
from typing import Any

import pytest
import tomlkit
from hypothesis import given, settings
from hypothesis import strategies as st

from dedupd_core.config.policy import KEYS, REMOVED, Policy, apply_values, parse_policy
from dedupd_core.config.policy_file import policy_text, reset_in_text, set_in_text, wrong_keys
from dedupd_core.config.profiles import PROFILES
from dedupd_core.config.reserve import Reserve
from dedupd_core.config.schedule import Every, Off
from dedupd_core.errors import PolicyError
from dedupd_core.system.processes import IoPriority
from dedupd_core.units import brief
from tests.support.malformed import malformed

WHERE = "/srv/share/.dedupd/policy.toml"
DOCUMENT = Path(__file__).resolve().parents[2] / "docs/guide/policy.md"


def test_an_empty_file_is_the_default() -> None:
    assert parse_policy("", WHERE) == Policy()
    assert (Policy().min_age_s, Policy().min_size_bytes) == (3 * 86400, 4096)


def test_every_key_can_be_set() -> None:
    policy = parse_policy(
        """
        min_age = "12h"
        min_size = "1 MiB"
        min_file_saving = 0.1
        exclude = ["*.tmp", "cache/"]
        exclude_types = [".MP4", "jpg"]
        no_compress_types = ["zip"]
        compression_level = 7
        compaction_min_dead = 0.2
        reserve = "2 GiB"
        redundancy_threshold = 20
        scrub_rate = "50 MiB"
        memory = "1 GiB"
        cores = 2
        stop_when_busy = false
        io_priority = "low"
        schedule_background = "every 30min"
        schedule_throughput = "off"
        """,
        WHERE,
    )
    assert policy == Policy(
        min_age_s=43200,
        min_size_bytes=1 << 20,
        min_file_saving=0.1,
        exclude=("*.tmp", "cache/"),
        exclude_types=("mp4", "jpg"),
        no_compress_types=("zip",),
        compression_level=7,
        compaction_min_dead=0.2,
        reserve=Reserve(2 << 30),
        redundancy_threshold=20,
        scrub_rate_bytes_per_s=50 << 20,
        memory_bytes=1 << 30,
        cores=2,
        stop_when_busy=False,
        io_priority=IoPriority.LOW,
        schedule_background=Every(1800),
        schedule_throughput=Off(),
    )


WRONG: list[tuple[str, Any, str]] = [
    ("min_age", 3, 'write a duration in quotes, for example "3d" or "12h"'),
    ("min_age", "3y", "'3y' is not a duration"),
    ("min_age", "9" * 400, "longer than a thousand years"),
    ("min_size", "big", "'big' is not a size"),
    ("min_size", -1, "write a size"),
    ("min_size", True, "write a size"),
    ("min_size", 10**40, "write a size"),
    ("min_file_saving", 1, "write a fraction"),
    ("include", 5, "write a list of texts"),
    ("ignore_case", "maybe", "write true or false"),
    ("markers", ["nodedup"], 'write "CACHEDIR.TAG" or ".nodedup"'),
    ("exclude", 5, "write a list of texts"),
    ("exclude", [""], "write a list of texts"),
    ("exclude", '["*.tmp", 3]', "write a list of texts"),
    ("exclude", '["*.tmp"', "write a list of texts"),
    ("exclude_types", [1], "write a list of texts"),
    ("no_compress_types", {"a": 1}, "write a list of texts"),
    ("compression_level", 20, "write a whole number from 0 to 19"),
    ("compression_level", 1.5, "write a whole number from 0 to 19"),
    ("compression_level", "--5", "write a whole number from 0 to 19"),
    ("compression_level", "\u00b2", "write a whole number from 0 to 19"),
    ("min_file_saving", "nan", "write a fraction"),
    ("min_file_saving", 10**400, "write a fraction"),
    ("min_file_saving", [], "write a fraction"),
    ("refine", "often", 'write "off" or "quick"'),
    ("refine_age", "old", "is not a duration"),
    ("schedule_refine", "nightly", 'write "off", "every 1h"'),
    ("compaction_min_dead", 1, "write a fraction"),
    ("reserve", "some", 'write a size, for example "20 GiB", a percentage, for example "5%"'),
    (
        "space_low",
        "auto",
        'write a size, for example "20 GiB", a percentage, for example "5%", or 0',
    ),
    (
        "space_critical",
        "little",
        'write a size, for example "20 GiB", a percentage, for example "5%", or 0',
    ),
    ("space_min_age", 1, "write a duration in quotes"),
    ("keep_deleted", 7, "write a duration in quotes"),
    ("keep_deleted_max", "auto", "a percentage"),
    ("restore_mode", "yes", "off"),
    ("busy_files", "maybe", 'write "skip" or "ranges"'),
    ("dedup_domain", "user", 'write "volume" or "owner" or "folder"'),
    ("shared_extents", "maybe", 'write "skip" or "take"'),
    ("compaction_shared", "maybe", 'write "skip" or "take"'),
    ("redundancy_threshold", 251, "write a whole number from 0 to 250"),
    ("scrub_rate", "fast", "'fast' is not a size"),
    ("memory", "much", "'much' is not a size"),
    ("cores", -1, "write a whole number from 0 to 1024"),
    ("cores", False, "write a whole number from 0 to 1024"),
    ("index", "fast", 'write "table" or "bloom"'),
    ("partitions", 0, "write a whole number from 1 to 256"),
    ("stop_when_busy", "no", "write true or false"),
    ("io_priority", "high", 'write "idle" or "low" or "normal"'),
    ("schedule_background", 60, "write a text in quotes"),
    ("schedule_throughput", "nightly", 'write "off", "every 1h"'),
    ("schedule_reconcile", "weekly", 'write "off", "every 1h"'),
    ("schedule_gc", "Sat 25:00 for 1h", "not a time of day"),
    ("schedule_compact", "Sat 02:00 for 8d", "of one second to one week"),
    ("schedule_scrub", "Caturday 02:00 for 8h", "is not a day"),
    ("schedule_full_scrub", "every 0s", "at least one second"),
    ("schedule_recover", "hourly", 'write "off", "every 1h"'),
    ("schedule_audit", "Sun 5 for 12h", 'write "off", "every 1h"'),
]


@pytest.mark.parametrize(("key", "value", "reason"), WRONG)
def test_an_error_names_file_key_value_and_reason(key: str, value: Any, reason: str) -> None:
    with pytest.raises(PolicyError) as caught:
        apply_values(Policy(), {key: value}, WHERE)
    message = str(caught.value)
    assert message.startswith(f"{WHERE}: {key} = {brief(value)}: ")
    assert reason in message


def test_every_key_has_a_wrong_value_in_these_tests() -> None:
    assert {key for key, _, _ in WRONG} == set(KEYS)


def test_an_unknown_key_is_named_with_the_known_ones() -> None:
    with pytest.raises(PolicyError, match="unknown key 'min_aeg'; use one of min_age, min_size"):
        parse_policy('min_aeg = "3d"', WHERE)


@pytest.mark.parametrize("name", REMOVED)
def test_a_key_of_an_earlier_version_is_named_with_the_remedy(name: str) -> None:
    text = f"cores = 2\n{name} = {REMOVED[name]}\n"
    remedy = f"and uses {REMOVED[name]}; to delete the key, run `dedupd policy PATH --reset {name}`"
    with pytest.raises(PolicyError, match=re.escape(remedy)):
        parse_policy(text, WHERE)
    assert wrong_keys(text, WHERE) == [name]
    assert parse_policy(reset_in_text(text, name, WHERE), WHERE) == Policy(cores=2)
    assert name not in KEYS


def test_a_file_that_is_no_toml_is_named_with_the_line() -> None:
    with pytest.raises(PolicyError, match=re.escape(WHERE) + ": not valid TOML: .*line 2"):
        parse_policy('min_age = "3d"\nmin_size == 5\n', WHERE)


@given(st.text(max_size=200))
def test_whatever_is_in_the_file_the_only_error_is_a_policy_error(text: str) -> None:
    try:
        parse_policy(text, WHERE)
    except PolicyError:
        pass


@given(st.sampled_from(sorted(KEYS)), st.text(max_size=20))
def test_whatever_is_typed_the_only_error_is_a_policy_error(key: str, value: str) -> None:
    try:
        apply_values(Policy(), {key: value}, WHERE)
    except PolicyError:
        pass


# --- what is excluded -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("patterns", "path", "excluded"),
    [
        (["*.tmp"], b"a.tmp", True),
        (["*.tmp"], b"deep/down/a.tmp", True),
        (["*.tmp"], b"a.tmp.txt", False),
        (["*.tmp"], b"dir.tmp/inside", True),
        (["cache"], b"x/cache/y", True),
        (["cache"], b"cached/y", False),
        (["home/*/cache"], b"home/anna/cache/file", True),
        (["home/*/cache"], b"other/home/anna/cache/file", False),
        (["/srv"], b"srv/file", True),
        (["srv/"], b"srv/file", True),
        (["srv/"], b"x/srv/file", False),
        (["a/b"], b"a/bc", False),
        (["*\udcff*"], b"odd \xff name", True),
        ([], b"anything", False),
    ],
)
def test_patterns(patterns: list[str], path: bytes, excluded: bool) -> None:
    assert Policy(exclude=tuple(patterns)).excludes(path) is excluded


@pytest.mark.parametrize(
    ("path", "excluded"),
    [
        (b"film.mp4", True),
        (b"deep/FILM.MP4", True),
        (b"mp4", False),
        (b".mp4", False),
        (b"film.mp4.part", False),
        (b"dir.mp4/film", False),
    ],
)
def test_types_are_the_end_of_the_name_in_any_case(path: bytes, excluded: bool) -> None:
    policy = Policy(exclude_types=("mp4",), no_compress_types=("mp4",))
    assert policy.excludes(path) is excluded
    assert policy.compresses(path) is not excluded


# --- writing it -------------------------------------------------------------------------------


@pytest.mark.parametrize("profile", sorted(PROFILES))
def test_a_new_file_explains_every_key_and_means_what_was_asked_for(profile: str) -> None:
    text = policy_text(PROFILES[profile])
    assert parse_policy(text, WHERE) == apply_values(Policy(), PROFILES[profile], WHERE)
    for key in KEYS.values():
        assert f"# {key.help}" in text
        assert re.search(rf"^(# )?{key.name} = ", text, re.MULTILINE)


def test_the_commented_defaults_are_the_defaults() -> None:
    uncommented = re.sub(r"^# (\w+ = )", r"\1", policy_text({}), flags=re.MULTILINE)
    assert parse_policy(uncommented, WHERE) == Policy()


policies = st.builds(
    Policy,
    min_age_s=st.floats(0, 1e9),
    min_size_bytes=st.integers(0, 2**50),
    memory_bytes=st.integers(0, 2**50),
    compression_level=st.integers(0, 19),
    min_file_saving=st.floats(0, 0.999),
    cores=st.integers(0, 1024),
    exclude=st.lists(st.text("abc*/.", min_size=1), max_size=3).map(tuple),
)


@given(policies)
def test_what_is_shown_reads_back_as_the_same(policy: Policy) -> None:
    shown = {key.name: key.form.show(getattr(policy, key.attribute)) for key in KEYS.values()}
    assert apply_values(Policy(), shown, WHERE) == policy


def test_setting_a_key_keeps_comments_and_the_other_keys() -> None:
    text = '# mine\nmin_age = "1d" # so\ncores = 1\n'
    changed = set_in_text(text, "min_age", "5d", WHERE)
    assert "# mine" in changed and "# so" in changed
    assert parse_policy(changed, WHERE) == Policy(min_age_s=5 * 86400, cores=1)


@pytest.mark.parametrize(
    ("key", "typed", "attribute", "value"),
    [
        ("cores", "2", "cores", 2),
        ("exclude", "*.tmp, cache/", "exclude", ("*.tmp", "cache/")),
        ("exclude", '["*.tmp", "scratch/"]', "exclude", ("*.tmp", "scratch/")),
        ("exclude", "[ab]*.txt", "exclude", ("[ab]*.txt",)),
        ("exclude", "", "exclude", ()),
        ("ignore_case", "true", "ignore_case", True),
        ("min_file_saving", "0.2", "min_file_saving", 0.2),
        ("min_size", "64k", "min_size_bytes", 65536),
    ],
)
def test_values_typed_on_the_command_line(key: str, typed: str, attribute: str, value: Any) -> None:
    policy = parse_policy(set_in_text("", key, typed, WHERE), WHERE)
    assert getattr(policy, attribute) == value


def test_a_wrong_value_is_not_written() -> None:
    with pytest.raises(PolicyError, match="cores = 'many'"):
        set_in_text("", "cores", "many", WHERE)


def test_a_key_is_not_set_in_a_file_that_cannot_be_read() -> None:
    with pytest.raises(PolicyError, match="not valid TOML"):
        set_in_text("== broken", "cores", "1", WHERE)


# --- its documentation ------------------------------------------------------------------------


def test_the_documentation_describes_every_key_with_its_default() -> None:
    sections = dict(re.findall(r"^### `(\w+)`\n(.*?)(?=^##|\Z)", DOCUMENT.read_text(), re.M | re.S))
    assert list(sections) == list(KEYS)
    for key in KEYS.values():
        shown = key.form.show(getattr(Policy(), key.attribute))
        default = tomlkit.item(shown).as_string()
        assert f"Default: `{default}`" in sections[key.name]


def test_the_examples_of_the_documentation_are_valid() -> None:
    examples = re.findall(r"^```toml\n(.*?)^```", DOCUMENT.read_text(), re.M | re.S)
    assert examples
    for example in examples:
        parse_policy(example, "docs/guide/policy.md")


# --- fuzz -------------------------------------------------------------------------------------


def is_refused_or_valid(text: str) -> None:
    try:
        policy = parse_policy(text, "policy.toml")
    except PolicyError as error:
        assert str(error).startswith("policy.toml: ")
        assert len(str(error)) < 1500
    else:
        assert isinstance(policy, Policy)


@given(malformed(KEYS))
def test_a_malformed_policy_is_refused(text: str) -> None:
    is_refused_or_valid(text)


@pytest.mark.slow
@settings(max_examples=10_000)
@given(malformed(KEYS))
def test_ten_thousand_malformed_policies_are_refused(text: str) -> None:
    is_refused_or_valid(text)
