"""Restorable deleted or overwritten files (docs/design/format.md, "Deletions")."""
