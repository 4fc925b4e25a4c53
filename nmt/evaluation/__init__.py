# Metrics, test sets, significance.
