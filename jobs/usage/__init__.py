"""The space that parts of a volume use, share, and would free."""
