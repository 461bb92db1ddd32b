"""A real database in place of Kubeflow's."""
