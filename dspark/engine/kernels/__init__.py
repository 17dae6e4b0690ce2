"""CPU kernels of our own: C++ sources, their build on first use, and typed calls into them."""
