"""Where servers are found: a static list, a file, DNS."""
