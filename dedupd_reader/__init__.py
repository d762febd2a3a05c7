"""The program ``dedupd-reader``: ``reader.py``, one file that needs nothing else of dedupd."""
