"""Notifications: problems, the ledger of notifications, and their delivery through channels."""
