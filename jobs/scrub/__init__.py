"""The scrub job: reading what is stored before it is needed."""
