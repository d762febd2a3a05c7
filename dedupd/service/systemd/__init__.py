"""The service with systemd: notifications, the journal, the slice of its jobs."""
