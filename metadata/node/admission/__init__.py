"""Admission at the ports, and the shares of the descriptors of this process."""
