"""Input to show and to measure Capstan with: real flights, and generated bids."""
