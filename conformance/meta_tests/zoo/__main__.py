"""``python -m zoo``: the worst error / bound of each kernel in each dtype."""

from honest import failures, judged

from zoo.kernels import ZOO
from zoo.ratios import DTYPES, worst

for kernel in ZOO:
    verdicts = judged(kernel())
    ratios = worst(verdicts)
    print(f"{kernel.__name__:24}", *(f"{dtype} {ratios[dtype]:.3f}" for dtype in DTYPES), *failures(verdicts), sep="  ")
