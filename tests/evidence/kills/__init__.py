"""`make kills`: every step and the whole run, killed at any moment and run again, against the undisturbed result."""
