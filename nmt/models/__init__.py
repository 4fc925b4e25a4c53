# Networks, and the interface through which training and searches use them.
