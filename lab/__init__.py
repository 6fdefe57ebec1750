"""What the entry scripts share: configuration, training and evaluation, where backbones, tasks and scoring meet."""
