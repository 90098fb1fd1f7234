"""Faults put into the bounds and the judge, one at a time: the tests must notice."""
