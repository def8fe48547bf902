"""Many runs: grids, searches, tables of papers, and what a run would cost."""
