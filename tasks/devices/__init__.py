"""Devices and processes: strategies of tf.distribute and the workers of a cluster."""
