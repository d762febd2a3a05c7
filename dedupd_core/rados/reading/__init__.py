"""Reads stubs from a store in a cluster, with a cache on this host's own disk."""
