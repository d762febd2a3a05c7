"""Taking over a copy of a volume."""
