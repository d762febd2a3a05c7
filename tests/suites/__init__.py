"""Test suites of other projects on a mount and on the file system below it: `make test-suites`."""
