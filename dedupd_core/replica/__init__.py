"""Volumes that are kept as another one was."""
