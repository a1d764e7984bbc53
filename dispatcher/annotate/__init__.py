"""Tables in, tables out: rows become requests, and answers become columns."""
