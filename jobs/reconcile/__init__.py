"""The reconcile job: what partitions of the index have in common."""
