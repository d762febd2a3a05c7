"""The state of the guard below mounts, for `dedupd doctor`."""

from typing import Any

from dedupd_core.units import counted


def guard_text(guard: dict[str, Any]) -> str:
    """Describe the state of the guard, as the service sees it."""
    if not guard["wanted"]:
        return "guard below mounts: off (guard_below in dedupd.toml)"
    if guard["problem"]:
        return f"guard below mounts: inactive, {guard['problem']}"
    if not guard["guarded"]:
        return "guard below mounts: on, but no volume is mounted"
    refused = counted(guard["refused"], "open")
    return f"guard below mounts: on for {', '.join(guard['guarded'])}, {refused} refused"
