# Tokenizers: text to ids and back.
