"""The optimize job: files into chunks, chunks into the store, stubs in their place."""
