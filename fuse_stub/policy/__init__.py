"""The effects of the policy on the mount itself."""
