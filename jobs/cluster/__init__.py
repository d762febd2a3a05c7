"""The jobs of volumes whose chunks are in a Ceph cluster."""
