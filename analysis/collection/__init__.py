"""Collecting the chunk logs of a study: walk, reading, logs."""
