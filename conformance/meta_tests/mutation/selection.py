"""Which tests every mutant has to face, the quickest killers first: at most 20 seconds together on a quiet machine."""

TESTS = (
    "spec/tests/test_numerics_twin.py",
    "spec/tests/test_sigma_twin.py",
    "spec/tests/test_numerics_backward_twin.py",
    "conformance/meta_tests/test_designated_sets.py",
    "spec/tests/test_numerics.py",
    "spec/tests/test_numerics_backward.py",
    "spec/tests/test_numerics_random.py",
)
FILES = tuple(dict.fromkeys(test.partition("::")[0] for test in TESTS))
COMMAND = ("python", "-m", "pytest", "-n", "0", "-x", "-q", "--no-header", "-p", "no:cacheprovider",
           "--override-ini=addopts=--strict-markers", "--tb=line", *TESTS)  # fmt: skip
SECONDS = 180
"""A mutant that has not been caught by then has made something endless: that counts as caught, and is named."""
