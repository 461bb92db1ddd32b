"""Work that the workers of an Apache Beam runner do, Dataflow's among them."""
