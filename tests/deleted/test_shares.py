"""Who loses what if deletions need more than may be kept."""

from collections import defaultdict
from collections.abc import Iterable

from hypothesis import given
from hypothesis import strategies as st

from dedupd_core.deleted.shares import KeptDeletions, surplus

SIZES = dict(enumerate((0, 1, 2, 3, 10, 50, 100, 1000)))
USERS = range(1, 5)


@st.composite
def deletions(draw: st.DrawFn) -> list[KeptDeletions]:
    """Of some users, each with logs of their own, in which the time goes forwards but for a
    clock that was set back."""
    rows = draw(
        st.lists(
            st.tuples(
                st.sampled_from(USERS),
                st.integers(0, 2),
                st.integers(0, 100),
                st.lists(st.sampled_from(sorted(SIZES)), min_size=1, max_size=2),
            ),
            max_size=30,
        )
    )
    ends: dict[int, int] = defaultdict(int)
    kept = []
    for user, log, time_ns, recipes in rows:
        number = 10 * user + log
        ends[number] += 200
        kept.append(KeptDeletions(user, time_ns, number, ends[number], tuple(recipes)))
    return kept


def needed(rows: Iterable[KeptDeletions]) -> int:
    return sum(SIZES[recipe] for recipe in {recipe for one in rows for recipe in one.recipes})


def without(kept: list[KeptDeletions], dropped: list[KeptDeletions]) -> list[KeptDeletions]:
    gone = {(one.log, one.end) for one in dropped}
    return [one for one in kept if (one.log, one.end) not in gone]


def of_user(rows: Iterable[KeptDeletions], user: int) -> list[KeptDeletions]:
    return [one for one in rows if one.account == user]


ALLOWED = st.integers(0, 2500)


@given(deletions(), ALLOWED)
def test_what_is_left_fits_and_nothing_is_dropped_that_fits(
    kept: list[KeptDeletions], allowed: int
) -> None:
    dropped = surplus(kept, SIZES, allowed)
    left = without(kept, dropped)
    assert len(left) + len(dropped) == len(kept)
    assert needed(left) <= allowed
    if dropped:
        assert needed([*left, dropped[-1]]) > allowed


@given(deletions(), ALLOWED)
def test_nobody_loses_anything_of_an_equal_share(kept: list[KeptDeletions], allowed: int) -> None:
    dropped = surplus(kept, SIZES, allowed)
    users = {one.account for one in kept}
    for user in users:
        if needed(of_user(kept, user)) * len(users) <= allowed:
            assert not of_user(dropped, user)


@given(deletions(), ALLOWED)
def test_who_loses_something_needed_most_just_before(
    kept: list[KeptDeletions], allowed: int
) -> None:
    dropped = surplus(kept, SIZES, allowed)
    for at, one in enumerate(dropped):
        left = without(kept, dropped[:at])
        assert needed(left) > allowed
        most = max(needed(of_user(left, user)) for user in USERS)
        assert needed(of_user(left, one.account)) == most


@given(deletions(), ALLOWED)
def test_the_oldest_go_first_and_of_each_log_its_beginning(
    kept: list[KeptDeletions], allowed: int
) -> None:
    dropped = surplus(kept, SIZES, allowed)
    left = without(kept, dropped)
    for gone in dropped:
        for one in of_user(left, gone.account):
            if one.log == gone.log:
                assert one.end > gone.end
            else:  # later than it, or in a log whose clock was set back
                earlier = [row for row in kept if row.log == gone.log and row.end <= gone.end]
                of_log = [row for row in kept if row.log == one.log and row.end <= one.end]
                latest = max(row.time_ns for row in earlier)
                assert max(row.time_ns for row in of_log) >= latest


@given(deletions(), ALLOWED, st.integers(1, 30))
def test_what_one_user_deletes_costs_another_nothing_of_an_equal_share(
    kept: list[KeptDeletions], allowed: int, count: int
) -> None:
    """However much it is, and whatever others shared with it."""
    flood = [KeptDeletions(9, at, 90, 200 * at, (7, 6, at % 6)) for at in range(count)]
    users = {one.account for one in kept} | {9}
    dropped = surplus([*kept, *flood], SIZES, allowed)
    for user in users - {9}:
        if needed(of_user(kept, user)) * len(users) <= allowed:
            assert not of_user(dropped, user)
