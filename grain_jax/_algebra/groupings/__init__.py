"""Groupings: which elements of one or several streams make an output; numbers only, no elements."""
