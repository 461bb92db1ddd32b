"""Functions and classes that `import tpu_pipelines` provides."""
