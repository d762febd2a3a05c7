"""One volume, opened: its catalogue and its commits."""
