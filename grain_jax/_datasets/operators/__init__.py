"""Operators on streams: each is a grouping and the dataset that it makes, in a file of its own."""
