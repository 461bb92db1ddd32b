"""What `import tpu_pipelines` gives: the commands as functions, from Python."""
