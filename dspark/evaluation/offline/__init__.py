"""A drafter's offline figures: rounds are decoded and stored, everything else is computed of them."""
