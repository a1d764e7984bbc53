"""The simulator: the real dispatcher under virtual time, with simulated servers, queue, disk and clock."""
