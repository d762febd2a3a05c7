"""One volume, opened: its catalogue, its commits, enabling and disabling."""
