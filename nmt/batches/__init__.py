# Pairs to batches: encoding, augmentation, plan and loader.
