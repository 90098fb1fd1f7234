"""Multi-head attention on one sentence, or on arrays of a model: what ``mha trace`` shows, in text, pictures and JSON."""
