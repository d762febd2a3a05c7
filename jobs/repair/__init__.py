"""Damaged records: quarantine, other sources of their bytes, and their return."""
