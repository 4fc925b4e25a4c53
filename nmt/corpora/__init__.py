# Text on disk as sentence pairs: lines, tables, TMX, archives, images.
