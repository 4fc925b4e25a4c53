# The content of a run folder: paths, history, weights, the base run, exports.
