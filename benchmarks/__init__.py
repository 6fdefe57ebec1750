"""Benchmarks: ratios against peers, measured in one run.

Threads wait asleep, as in the entry scripts, so that CPU time with two of them counts work and not waiting.
"""

import os

os.environ.setdefault("OMP_WAIT_POLICY", "passive")  # read when torch starts its threads
