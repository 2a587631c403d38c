"""Turns text files into a vocabulary and memory-mapped token shards."""
