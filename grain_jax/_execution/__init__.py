"""How pipelines run: in process, in worker processes, and ahead of their user."""
