"""Floor 3: how descriptions run, in this process, in worker processes and in threads ahead."""
