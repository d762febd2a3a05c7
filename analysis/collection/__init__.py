"""Collecting the chunk logs of a study: the walk, the reading, the logs."""
