"""Stores that several volumes share, and the volumes of one seen together."""
