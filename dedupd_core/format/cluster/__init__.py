"""A store in a Ceph cluster: its objects, and the record that links a volume to it."""
