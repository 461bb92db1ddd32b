"""The training step that is compiled: hyper-parameters, loss, optimizer, augmentation, sharding."""
