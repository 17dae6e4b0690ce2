"""Training of drafters: responses of the target, cached features, anchors, losses, the trainer."""
