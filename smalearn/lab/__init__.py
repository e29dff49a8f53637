"""Sources of assets/results: benchmarks beside other libraries, and experiments that train small models."""
