"""Shared stores: creating a store, and locking all of its volumes."""
