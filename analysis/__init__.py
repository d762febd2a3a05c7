"""The study: what deduplication would save on any directory."""
