"""Formats of what a job has made out of the store, and can make again."""
