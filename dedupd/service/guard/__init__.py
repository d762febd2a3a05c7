"""The guard below mounts: programs that open stubs without the mount get an error."""
