"""Deletions and overwrites by users: recorded before they happen, so that they can be restored."""
