"""Volumes saved, moved and looked back into."""
