"""What a training takes: memory, time and price of its step on a machine, found before a run, and how they changed."""
