"""Finding files in the tree of a volume."""
