"""A tree as nodes: reads it without races, and writes it where users can change entries."""
