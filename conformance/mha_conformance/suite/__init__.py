"""What ``pytest --pyargs mha_conformance.suite`` collects; ``mha_conformance.plugin`` fills it with the cases."""
