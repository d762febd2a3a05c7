"""Look-up of fingerprints: which chunk, if any, already holds these bytes."""
