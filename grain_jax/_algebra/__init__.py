"""What can be done to records: index maps and element functions, each written once."""
