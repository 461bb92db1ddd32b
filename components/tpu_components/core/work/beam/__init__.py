"""Tasks on the workers of an Apache Beam runner, for example Dataflow."""
