# Searches, engines (PyTorch, CTranslate2), the translator, files.
