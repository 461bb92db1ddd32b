"""The pipeline that wires the steps, and the ways to run it."""

STEPS = ("create_tfrecords", "preflight_training", "train_model", "evaluate_model", "export_model", "deploy_model")
