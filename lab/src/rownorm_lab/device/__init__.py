"""The device and its environment: the database of devices, the vendor's sensors, and installed versions."""
