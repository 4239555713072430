"""Doctests of the suite's modules: those that need a peer are left alone."""

collect_ignore = ["threads.py", "torches.py"]
