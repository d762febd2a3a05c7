"""The line to the kernel: the requests that the native loop hands over."""
