"""Pipeline steps, one package each, and the few modules that they share."""
