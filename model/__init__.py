"""S4ConvD: plain modules here, Lightning's side in `model.training`."""
