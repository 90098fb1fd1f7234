"""Tells right from wrong: the truth of a case, the bound, the verdict, the blame."""
