"""Files and directories that users have open, and the chunks that they read."""
