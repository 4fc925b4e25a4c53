# Attention, reports, comparisons.
