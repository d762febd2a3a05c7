"""Files in a tree that users change: their paths, and what root restores of them."""
