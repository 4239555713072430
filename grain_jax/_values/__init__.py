"""Plain values that every other part is written in: options, records, errors, randomness, files."""
