"""Files that users write to continuously: commits of their idle parts (docs/guide/mount.md)."""
