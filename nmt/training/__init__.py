# Loss, optimization, the training loop, starting and resuming it.
