"""How long a job goes on, by what it has done so far."""

from jobs.frame.run import TOLD_AFTER_S, TimeToGo


def test_the_speed_of_the_phase_tells_how_long_it_goes_on() -> None:
    clock = [100.0]
    to_go = TimeToGo(lambda: clock[0])

    def told() -> float | None:
        return to_go.seconds

    to_go.see("reading", 50, 1050)
    assert told() is None, "nothing was done yet"
    clock[0] += 10
    to_go.see("reading", 150, 1050)
    assert told() == 90, "what was done before does not count"
    to_go.see("writing", 150, 1050)
    assert told() is None, "another phase has another speed"
    clock[0] += TOLD_AFTER_S / 2
    to_go.see("writing", 1000, 1050)
    assert told() is None, "too early to say"
    clock[0] += 10
    to_go.see("writing", 1000, 0)
    assert told() is None, "no end is known"


def test_time_in_which_it_waits_for_users_does_not_count() -> None:
    clock = [0.0]
    to_go = TimeToGo(lambda: clock[0])
    to_go.see("reading", 0, 100)
    clock[0] += 10
    to_go.see("reading", 50, 100, held=True)
    clock[0] += 3600
    to_go.see("reading", 50, 100)
    clock[0] += 10
    to_go.see("reading", 75, 100)
    assert to_go.seconds == 20 * 25 / 75
