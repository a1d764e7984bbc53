"""The composition root: alone in naming the concrete parts, and in tying them into one lifetime."""
