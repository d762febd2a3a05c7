"""A store in a cluster as stubs are read from it, with a cache on this host's own disk."""
