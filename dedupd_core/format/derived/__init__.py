"""Formats of data that a job has derived from the store, and can rebuild."""
