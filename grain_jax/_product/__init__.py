"""What users hold: the loader, the device stage, the checkpoint handler."""
