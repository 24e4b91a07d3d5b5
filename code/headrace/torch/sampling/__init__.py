"""Selection of the samples that each rank takes in each step."""
