"""What was deleted or overwritten lately, and can be had back (docs/format.md, "Deletions")."""
