"""The commands about nodes, clusters and stores."""
