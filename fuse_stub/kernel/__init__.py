"""The connection to the kernel: the requests that it sends."""
