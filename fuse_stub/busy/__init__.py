"""Files that users write to all the time: what of them is quiet (docs/guide/mount.md)."""
