"""Machines for training: catalogue, specifications, devices, groups of hosts, and estimates of memory and price."""
