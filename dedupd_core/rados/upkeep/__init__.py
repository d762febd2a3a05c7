"""Looking after a store that many hosts have: whose turn it is, hosts that are gone, how it is."""
