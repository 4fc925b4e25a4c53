# Compositions of the packages above: init, adapt, distill.
