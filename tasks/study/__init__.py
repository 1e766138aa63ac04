"""Studies: grids of runs, the paper's ablations and protocol, probes."""
