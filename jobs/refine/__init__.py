"""The second look: what is stored and cold gets smaller payloads."""
