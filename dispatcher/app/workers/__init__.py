"""Several processes on one machine that send one job's requests, and the one that looks after them.

The parent reads the input, holds the state directory's lock, shows the progress and writes the files. Each
worker is a node of its own on the same queue, with its own servers' watch, recorder and journals.
"""
