"""The store in a Ceph cluster: many hosts, one set of chunks (docs/guide/cluster.md; seed 004).

No module of Ceph is imported before a store is opened, so a machine without Ceph needs none.
"""
