"""Ids to tensors, in Keras operations only."""
