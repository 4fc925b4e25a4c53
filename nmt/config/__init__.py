# Every key: sections, reading a YAML, explaining keys; file formats and languages.
