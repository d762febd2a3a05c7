"""The service's HTTP: control requests, metrics and the page."""
