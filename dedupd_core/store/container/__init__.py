"""Containers and their redirection tables: files, recovery and compaction."""
