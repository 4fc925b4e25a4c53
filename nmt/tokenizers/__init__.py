# Text to ids and back.
