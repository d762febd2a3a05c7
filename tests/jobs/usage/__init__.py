"""What parts of a volume take, and would free."""
