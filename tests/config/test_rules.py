"""Rules for parts of the tree: what holds for which path."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dedupd_core.config.policy import Policy, decided, parse_policy
from dedupd_core.config.policy_file import keep_plain, reset_in_text, set_in_text, wrong_keys
from dedupd_core.config.rules import pattern_of, takes
from dedupd_core.errors import PolicyError

WHERE = "/srv/share/.dedupd/policy.toml"

RULES = """
min_size = "32k"
exclude = ["*.iso", "!keep.iso"]
exclude_types = ["mp4"]
no_compress_types = ["zip"]

[[rule]]
path = ["projects/*/render", "!projects/old"]
min_age = "0s"
min_size = "4k"

[[rule]]
path = "projects/a/"
min_age = "1d"

[[rule]]
path = "films/"
exclude = false
compress = false

[[rule]]
path = ["*.zip", "secret"]
compress = true
exclude = true
"""


@pytest.mark.parametrize(
    ("path", "age_s", "size", "excluded", "compresses"),
    [
        (b"x.bin", 3 * 86400, 32768, "", True),
        (b"projects/b/render/x.bin", 0, 4096, "", True),
        (b"projects/old/render/x.bin", 3 * 86400, 32768, "", True),
        (b"projects/a/render/x.bin", 86400, 4096, "", True),
        (b"a/x.iso", 3 * 86400, 32768, 'exclude, by "*.iso"', True),
        (b"a/keep.iso", 3 * 86400, 32768, "", True),
        (b"X.MP4", 3 * 86400, 32768, 'exclude_types, by "mp4"', True),
        (b"films/X.MP4", 3 * 86400, 32768, "", False),
        (b"films/x.zip", 3 * 86400, 32768, "rule 4", True),
        (b"a/secret/b/c", 3 * 86400, 32768, "rule 4", True),
        (b"a/secrets/b/c", 3 * 86400, 32768, "", True),
    ],
)
def test_a_rule_overrides_keys_and_a_later_rule_overrides_it(
    path: bytes, age_s: float, size: int, excluded: str, compresses: bool
) -> None:
    policy = parse_policy(RULES, WHERE)
    found = decided(policy, path)
    assert (found.min_age_s, found.min_size_bytes) == (age_s, size)
    assert (found.excluded, found.compresses) == (excluded, compresses)
    assert policy.excludes(path) is bool(excluded) and policy.compresses(path) is compresses


def test_a_decision_names_the_rule_of_each_key() -> None:
    found = decided(parse_policy(RULES, WHERE), b"projects/a/render/x")
    assert [found.source(key) for key in ("min_age", "min_size", "exclude")] == [
        "rule 2",
        "rule 1",
        "the policy",
    ]


def test_include_takes_only_what_it_names() -> None:
    policy = Policy(include=("vm/", "*.img"), exclude=("vm/tmp/",))
    assert not policy.excludes(b"vm/a") and not policy.excludes(b"x/y.img")
    assert policy.excludes(b"vm/tmp/a.img") and policy.excludes(b"x/y")


@pytest.mark.parametrize("pattern", ["Alte Dateien/", "/alte dateien/X.TXT", "x.TxT"])
def test_patterns_take_both_cases_alike_where_the_share_does(pattern: str) -> None:
    path = b"alte DATEIEN/X.txt"
    assert not Policy(exclude=(pattern,)).excludes(path)
    assert Policy(exclude=(pattern,), ignore_case=True).excludes(path)


def test_the_loosest_of_all_rules_bounds_what_is_looked_at() -> None:
    assert parse_policy(RULES, WHERE).loosest == (0, 4096)
    assert Policy(min_age_s=5.0, min_size_bytes=7).loosest == (5.0, 7)


@pytest.mark.parametrize(
    ("rule", "reason"),
    [
        ({"min_age": "0s"}, "rule 1: has no path"),
        ({"path": "a"}, "rule 1: sets no value"),
        ({"path": "a", "min_age": "3y"}, "rule 1: min_age = '3y'"),
        ({"path": "a", "memory": "1G"}, "rule 1: unknown key 'memory'"),
        ({"path": [], "exclude": True}, "rule 1: has no path"),
        ("a", "write each rule as a table"),
    ],
)
def test_an_error_names_the_rule(rule: Any, reason: str) -> None:
    import tomlkit

    text = tomlkit.dumps({"rule": [rule]})
    with pytest.raises(PolicyError) as caught:
        parse_policy(text, WHERE)
    assert str(caught.value).startswith(f"{WHERE}: rule = ") and reason in str(caught.value)
    assert wrong_keys(text, WHERE) == ["rule"]
    assert parse_policy(reset_in_text(text, "rule", WHERE), WHERE) == Policy()


NAMES = st.binary(min_size=1, max_size=12).filter(lambda name: not set(name) & {0, ord("/")})


@given(parts=st.lists(NAMES, min_size=1, max_size=4), other=NAMES)
def test_a_path_as_a_pattern_matches_itself_and_what_lies_below(
    parts: list[bytes], other: bytes
) -> None:
    path = b"/".join(parts)
    text = keep_plain("", [pattern_of(path)], WHERE)
    policy = parse_policy(text, WHERE)
    assert policy.excludes(path) and policy.excludes(path + b"/" + other)
    changed = b"/".join([*parts[:-1], parts[-1] + b"x"])
    assert not policy.excludes(changed)
    assert not policy.excludes(b"elsewhere/" + path)


def test_a_literal_exclamation_mark_is_written_with_a_backslash() -> None:
    assert takes(["\\!x"], "a/!x", False) and not takes(["!x"], "a/!x", False)


def test_files_that_are_kept_plain_share_the_last_rule() -> None:
    text = keep_plain("# mine\ncores = 1\n", ["/a"], WHERE)
    text = keep_plain(text, ["/b", "/a"], WHERE)
    assert [rule.path for rule in parse_policy(text, WHERE).rules] == [("/a", "/b")]
    assert "# mine" in text
    text += '\n[[rule]]\npath = "c"\nmin_age = "0s"\n'
    text = set_in_text(keep_plain(text, ["/d"], WHERE), "min_age", "5d", WHERE)
    policy = parse_policy(text, WHERE)
    assert [rule.path for rule in policy.rules] == [("/a", "/b"), ("c",), ("/d",)]
    assert (policy.cores, policy.min_age_s) == (1, 5 * 86400)
