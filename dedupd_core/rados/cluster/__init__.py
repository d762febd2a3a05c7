"""Ceph as the store uses it: addresses, the library, atomic changes of one object each."""
