"""The compaction job."""
