"""The line to the kernel: its handshake, and the requests that it sends."""
