"""tf.data service: its servers, and the transfer of batches."""
