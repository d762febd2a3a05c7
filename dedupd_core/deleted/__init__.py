"""What was deleted or overwritten lately, and can be had back (docs/design/format.md,
"Deletions")."""
