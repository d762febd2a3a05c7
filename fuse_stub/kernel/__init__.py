"""The line to the kernel: the requests that it sends."""
