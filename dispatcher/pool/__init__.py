"""Server states, limits, membership, monitoring."""
