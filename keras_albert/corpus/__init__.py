"""Text -> vocabulary and memory-mapped token shards."""
