"""Generated input to measure with: Nexmark's bids, events and queries."""
