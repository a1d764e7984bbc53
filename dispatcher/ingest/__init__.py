"""The one streaming pass over an input: every line checked, shards cut."""
