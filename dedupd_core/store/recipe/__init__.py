"""Recipes: the chunks of a file, in a tree of nodes."""
