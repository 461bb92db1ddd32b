"""What is compiled: hyper-parameters, loss, optimizer, augmentation, averaging. Training and preflight share it."""
