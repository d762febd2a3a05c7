"""A store, opened: a volume's own, or one that several volumes share."""
