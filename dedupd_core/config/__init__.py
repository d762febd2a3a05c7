"""Policies, schedules and their values, as an administrator writes them."""
