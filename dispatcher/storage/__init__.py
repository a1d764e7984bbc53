"""Where input and output bytes live."""
