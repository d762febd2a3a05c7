"""Telling somebody: what a problem is, which were told already, and the ways to tell."""
