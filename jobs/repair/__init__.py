"""Damaged records: quarantine, other sources, and their return."""
