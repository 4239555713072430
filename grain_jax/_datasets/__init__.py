"""Floor 2: datasets as descriptions, and the plan that is made of one."""
