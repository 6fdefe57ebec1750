"""What the entry scripts share: configuration, training and evaluation, where backbones, tasks and scoring meet."""

import os

# Before torch starts its threads: threads that spin while they wait make a step fifty times slower on a busy machine.
os.environ.setdefault("OMP_WAIT_POLICY", "passive")
