"""One module a revision. A released revision is never changed."""
