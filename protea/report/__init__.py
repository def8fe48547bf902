"""The report of runs: one HTML page that needs nothing else, and figures for papers.

It reads run directories and knows nothing of learning.
"""
