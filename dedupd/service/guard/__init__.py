"""The guard below mounts: programs that open stubs past the mount get an error."""
