"""Stores that several volumes share."""
