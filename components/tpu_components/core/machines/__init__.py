"""Machine specifications and their catalogue, devices, the process group of hosts, footprints of a training."""
