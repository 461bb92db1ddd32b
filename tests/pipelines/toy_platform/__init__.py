"""A third platform, written against `tpu_pipelines.platforms.platform`: it runs compiled pipelines on this machine."""
