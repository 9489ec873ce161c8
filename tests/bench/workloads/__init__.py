"""Generated input for benchmarks: Nexmark's bids, events and queries."""
