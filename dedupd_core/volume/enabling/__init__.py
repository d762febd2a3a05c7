"""Turning a directory into a volume and back: where that may happen, and what it moves."""
