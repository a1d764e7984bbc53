"""Several nodes in one simulation: one queue, one store, and each with a disk and a network of its own."""
