"""Who computes: one package per array library, each found through the entry-point group ``mha.backends``."""
