"""The HTTP server of the service: control requests, metrics and the page."""
