"""What an administrator says: policies, schedules and their values."""
