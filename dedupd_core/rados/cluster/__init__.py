"""Access to Ceph: addresses, the library, atomic changes of one object each."""
