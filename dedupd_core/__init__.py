"""The core of dedupd: formats, the store, stubs and volumes."""

__version__ = "0.1.0"
