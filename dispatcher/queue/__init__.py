"""The shared work queue: in memory, and in SQL."""
