"""The wire: transport, verdicts, probes."""
