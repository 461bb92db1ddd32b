"""This machine: kfp.local, which runs a pipeline in processes or containers."""
