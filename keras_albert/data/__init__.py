"""Documents and tables to tf.data of (x, y, sample_weight)."""
