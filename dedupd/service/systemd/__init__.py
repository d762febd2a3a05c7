"""The service beside systemd: notifications, the journal, the slice of its jobs."""
