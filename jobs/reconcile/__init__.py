"""The reconcile job: merges chunks that several partitions of the index have."""
