"""Studies of many runs: grids, searches and tables of papers; and the estimated cost of a run."""
