"""Submitted jobs and their files, from upload to output: what the service keeps and `run` does in one go."""
