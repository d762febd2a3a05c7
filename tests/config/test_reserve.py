"""The reserve: what the policy's words mean for file systems of all sizes."""

import pytest

from dedupd_core.config.policy import Policy, parse_policy
from dedupd_core.config.reserve import Reserve, parse_reserve, show_reserve
from dedupd_core.errors import PolicyError
from dedupd_core.units import GIB, MIB


@pytest.mark.parametrize(
    ("total_bytes", "reserve_bytes"),
    [
        (1000 * GIB, 30 * GIB),  # three percent
        (20 * GIB, 1 * GIB),  # a gibibyte
        (5 * GIB, GIB // 2),  # a tenth
        (0, 0),
    ],
)
def test_the_default_is_a_gibibyte_or_three_percent_and_at_most_a_tenth(
    total_bytes: int, reserve_bytes: int
) -> None:
    assert Policy().reserve == Reserve()
    assert Reserve().bytes_of(total_bytes) == pytest.approx(reserve_bytes, abs=1)


@pytest.mark.parametrize(
    ("written", "reserve_bytes"),
    [
        ('"5%"', 100 * MIB),
        ('"12.5 %"', 250 * MIB),
        ('"0%"', 0),
        ("0", 0),
        ('"300 MiB"', 300 * MIB),
        ('"3 GiB"', 3 * GIB),
    ],
)
def test_it_is_set_as_a_size_or_as_a_percentage(written: str, reserve_bytes: int) -> None:
    reserve = parse_policy(f"reserve = {written}", "policy.toml").reserve
    assert reserve.bytes_of(2000 * MIB) == reserve_bytes
    assert parse_reserve(show_reserve(reserve)) == reserve


@pytest.mark.parametrize("written", ['"100%"', '"-1"', '"much"', "true", "1.5", "[]", '"%"'])
def test_everything_else_is_refused_with_what_to_write(written: str) -> None:
    with pytest.raises(PolicyError, match=r'reserve = .*: write a size, for example "20 GiB"'):
        parse_policy(f"reserve = {written}", "policy.toml")
