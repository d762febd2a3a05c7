"""The service: keeps volumes mounted and runs their jobs."""
