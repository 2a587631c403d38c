"""The ALBERT models: token ids to tensors, in Keras operations only."""
