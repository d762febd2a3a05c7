"""Jobs that append to one store beside each other."""
