# Networks, and the interface by which training and decoding know them.
