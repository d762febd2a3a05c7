"""On-disk formats as pure functions over bytes, described in ``docs/design/format.md``. No I/O."""
