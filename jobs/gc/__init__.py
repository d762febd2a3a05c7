"""The garbage collection job."""
