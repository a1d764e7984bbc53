"""Outcomes on disk: journal, finalise, verify."""
