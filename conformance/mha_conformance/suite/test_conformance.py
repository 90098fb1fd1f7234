"""Replaced by the cases when ``mha_conformance.plugin`` is loaded; without it, this says so."""


def test_the_plugin_is_loaded() -> None:
    raise AssertionError("give pytest: -p mha_conformance.plugin --mha-backend=NAME")
