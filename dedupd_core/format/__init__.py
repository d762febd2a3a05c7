"""On-disk formats as pure functions over bytes; the prose is in ``docs/format.md``. No I/O."""
