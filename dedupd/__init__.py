"""dedupd: deduplication of primary volumes, after the data has been written."""

__version__ = "0.1.0"
