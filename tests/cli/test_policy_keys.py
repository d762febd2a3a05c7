"""``dedupd policy`` shows few keys, and the others on demand or when they have been changed."""

import json
from pathlib import Path

from dedupd_core.config.policy import ADVANCED, KEYS
from tests.support.lab import lab_in, run_cli


def _shown(text: str) -> list[str]:
    return [line.split(" = ")[0] for line in text.splitlines() if line and line[0] not in "#["]


def test_about_twelve_keys_are_basic_and_the_others_say_who_needs_them() -> None:
    assert set(ADVANCED) < set(KEYS)
    assert 10 <= len(KEYS) - len(ADVANCED) <= 14


def test_an_advanced_key_is_shown_once_it_has_another_value(tmp_path: Path) -> None:
    with lab_in(tmp_path) as lab:
        lab.write_policy('min_age = "1h"\n')
        basic = [key for key in KEYS if key not in ADVANCED]
        said = run_cli("policy", lab.root).stdout
        assert _shown(said) == basic
        assert f"# {len(ADVANCED)} advanced keys have their defaults" in said
        assert run_cli("policy", lab.root, "cores", "2").returncode == 0
        said = run_cli("policy", lab.root).stdout
        assert _shown(said) == [*basic, "cores"]
        assert f"# {len(ADVANCED) - 1} advanced keys have their defaults" in said


def test_all_keys_are_shown_on_demand_and_always_to_programs(tmp_path: Path) -> None:
    with lab_in(tmp_path) as lab:
        said = run_cli("policy", lab.root, "--all").stdout
        assert set(_shown(said)) == set(KEYS)
        assert all(f"(for {who})" in said for who in ADVANCED.values())
        assert "--all" not in said
        assert set(json.loads(run_cli("policy", lab.root, "--json").stdout)) == {*KEYS, "rule"}
