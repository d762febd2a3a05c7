"""The chunk store: containers, their redirection tables, and recipes."""
