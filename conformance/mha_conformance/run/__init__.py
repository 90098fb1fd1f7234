"""Runs what the specification says on whatever computes."""
