"""The study's report: figures, findings and advice."""
