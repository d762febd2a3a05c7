"""Look-up of fingerprints: finds the chunk, if any, that already has these bytes."""
