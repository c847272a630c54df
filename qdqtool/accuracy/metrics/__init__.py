"""The shelf of metrics: each file is one metric."""
