"""What parts of a volume take, share, and would free."""
