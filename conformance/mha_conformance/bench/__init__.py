"""How fast, and in how much memory: competitors in processes of their own, rounds that take turns, and no ratio out of noise."""
