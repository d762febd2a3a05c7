"""dedupd: deduplication of primary volumes, after the data has been written."""
