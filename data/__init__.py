"""Code for data sets; the data themselves live elsewhere."""
