"""Generated histories of a user who forges whatever the program itself writes."""
