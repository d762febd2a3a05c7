"""Files that are never left alone, of which optimize takes the parts that are."""
