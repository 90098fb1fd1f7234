"""Faulty backends: each a small mutation of the honest attention, with the clause that must be blamed for it first."""
