"""A cluster for the tests of this folder, and stores in it."""

from tests.support.ceph_fixtures import address, ceph, site

__all__ = ["address", "ceph", "site"]
