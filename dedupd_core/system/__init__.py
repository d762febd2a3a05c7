"""One machine: files, durable effects, mounts and processes."""
