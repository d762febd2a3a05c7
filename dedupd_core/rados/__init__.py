"""The store in a Ceph cluster: many hosts, one set of chunks (docs/guide/cluster.md; seed 004).

Nothing is imported of Ceph's before a store is opened: a machine without Ceph needs nothing.
"""
