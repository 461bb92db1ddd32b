"""Machine specifications and their catalogue, devices, the process group of hosts, and footprints of training runs."""
