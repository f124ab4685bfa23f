"""The floor: slotwise and the bare engine side by side on workloads of every shape."""
