# Choice of sentence pairs: rules, selection, held-out sets, the profile of a corpus.
