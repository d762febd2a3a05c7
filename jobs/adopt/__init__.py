"""Adoption of a copy of a volume."""
