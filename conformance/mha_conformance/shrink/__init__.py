"""From a failing case to the smallest call that fails in the same way."""
