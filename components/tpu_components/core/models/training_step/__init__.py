"""The compiled training step: hyper-parameters, loss, optimizer, augmentation, sharding."""
