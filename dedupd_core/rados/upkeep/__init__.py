"""Maintenance of a store that many hosts share: host turns, dead hosts, and the status."""
