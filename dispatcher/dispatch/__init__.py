"""The loop: lease, permit, send, judge, record."""
