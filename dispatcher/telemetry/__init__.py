"""Metrics, all series in one place, and logging."""
