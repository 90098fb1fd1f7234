"""The command ``mha``."""
