"""What users delete and overwrite, noted before it happens, and had back."""
