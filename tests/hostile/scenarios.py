"""The scenarios that were once broken or dangerous, and the tests that play them again.

``make test-hostile`` runs all of them and says of each scenario how it went. A test stands here by
its file, or by its file and name.
"""

SCENARIOS: dict[str, tuple[str, ...]] = {
    "copies of a volume": (
        "tests/hostile/test_copies.py",
        "tests/volume/test_copied_volume.py",
    ),
    "a full disk": (
        "tests/jobs/optimize/test_admission.py",
        "tests/jobs/test_reserve.py",
        "tests/volume/test_room.py",
    ),
    "filling up a file in use": (
        "tests/fuse_stub/test_fill_lane.py",
        "tests/cli/test_leaving.py",
    ),
    "open directories": (
        "tests/hostile/test_greedy_users.py::test_open_directories_of_one_user_take_little_memory",
    ),
    "a log that nobody reads": (
        "tests/hostile/test_greedy_users.py"
        "::test_a_damaged_file_that_is_read_in_a_loop_beside_a_log_that_nobody_reads",
    ),
    "subvolumes inside": (
        "tests/volume/test_enable_in_use.py::test_subvolumes_inside_are_refused_each_by_its_name",
        "tests/volume/test_enable_in_use.py::test_a_subvolume_that_appears_later_is_counted",
    ),
    "what users see where nothing is mounted": (
        "tests/volume/test_enable_in_use.py"
        "::test_an_unmounted_volume_is_closed_to_users_and_not_empty_to_them",
    ),
    "forged file handles": ("tests/hostile/test_file_handles.py",),
    "clients of the service": ("tests/hostile/test_service_clients.py",),
    "file systems that lose data": (
        "tests/volume/test_file_systems.py",
        "tests/hostile/test_files.py"
        "::test_a_file_system_with_stale_blocks_after_power_cuts_is_refused",
    ),
    "garbage collection beside renames": (
        "tests/jobs/gc/test_walk_beside_moves.py",
        "tests/jobs/gc/test_gc_mounted.py",
    ),
    "read-only file systems": ("tests/fuse_stub/test_read_only.py",),
    "snapshots and reflinks below": ("tests/jobs/optimize/test_shared_extents.py",),
    "slow calls of one user": (
        "tests/fuse_stub/test_slow_calls.py",
        "tests/fuse_stub/test_descriptors.py",
    ),
    "enabling a directory in use": ("tests/volume/test_enable_in_use.py",),
    "quotas": (
        "tests/jobs/test_unoptimize.py"
        "::test_a_quota_that_is_used_up_is_the_finding_of_its_file_and_the_others_go_on",
    ),
    "sources of mounts": ("tests/hostile/test_mount_sources.py",),
    "capabilities beside a settling": ("tests/fuse_stub/test_settling.py",),
    "a greedy user beside all of it": ("tests/whole/test_greedy_soak.py",),
}


def scenario_of(test: str) -> str | None:
    """The scenario that a test belongs to, by the test's name with its file: the one that names it
    most closely."""
    found = [
        (len(prefix), name)
        for name, prefixes in SCENARIOS.items()
        for prefix in prefixes
        if test.partition("[")[0] == prefix or test.startswith(f"{prefix}::")
    ]
    return max(found)[1] if found else None
