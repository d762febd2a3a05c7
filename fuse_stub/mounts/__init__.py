"""Mount points: the processes that serve volumes, and how to reach them."""
