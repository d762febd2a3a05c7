"""Recently deleted or overwritten files, which can be restored (docs/design/format.md,
"Deletions")."""
