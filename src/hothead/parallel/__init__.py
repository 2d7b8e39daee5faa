"""One rank among many: groups and collectives, partition arithmetic, linear layers, full head, hot head."""
