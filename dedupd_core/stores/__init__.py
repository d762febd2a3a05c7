"""An open store: a volume's own store, or a shared store."""
