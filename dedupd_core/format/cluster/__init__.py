"""A store in a Ceph cluster: its objects, and what ties a volume to it."""
