"""What the policy asks of the mount itself."""
