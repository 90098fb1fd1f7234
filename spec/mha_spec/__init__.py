"""The specification of Multi-Head Attention: numbered clauses, and the equations they cite."""

SPEC_VERSION = "0.1.0"
