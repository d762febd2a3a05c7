"""On-disk formats as pure functions over bytes; the prose is in ``docs/design/format.md``. No
I/O."""
