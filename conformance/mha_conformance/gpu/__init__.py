"""``mha gpu-check``: what a machine with a GPU can tell of the CuPy backend, in one run of eight minutes without a network."""
