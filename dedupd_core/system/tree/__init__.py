"""Files in a tree that users change: the paths that they have, and what root takes over of them."""
