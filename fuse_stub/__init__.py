"""The FUSE file system that shows a volume's tree and serves its stubs from the chunk store."""
