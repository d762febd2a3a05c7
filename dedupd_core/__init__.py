"""What all of dedupd stands on: formats, the store, stubs and volumes."""

__version__ = "0.1.0"
