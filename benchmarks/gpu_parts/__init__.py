"""The parts of `gpu.py`: operators, whole steps, and how both are reported."""
