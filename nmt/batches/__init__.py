# Ids to batches: encoding, augmentation, plan, padding.
