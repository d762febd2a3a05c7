"""The base of all jobs: run, report, channel, pace."""
