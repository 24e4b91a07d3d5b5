"""Input: images in folders, arrays in memory, image operations on batches."""
