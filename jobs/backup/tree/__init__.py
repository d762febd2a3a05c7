"""A tree as its nodes: read without a race, and written where users can change what is there."""
