"""Files of records: how they are found and opened, counted, and read by record number."""
