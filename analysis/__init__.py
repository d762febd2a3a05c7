"""The study: estimates the savings of deduplication for any directory."""
