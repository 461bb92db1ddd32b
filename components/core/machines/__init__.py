"""Machine specifications and their catalogue, devices, the process group of hosts, a step's cost."""
