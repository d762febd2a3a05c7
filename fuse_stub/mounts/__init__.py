"""Mount points: which process serves a volume, and how it is reached."""
