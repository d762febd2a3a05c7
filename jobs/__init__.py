"""Background jobs: one module per job, one shared frame."""
