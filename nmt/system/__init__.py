# The machine: files written whole, locks, processes, devices, ranks, the console.
