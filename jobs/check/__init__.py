"""Checking records and references; the verify job."""
