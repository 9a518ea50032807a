"""What commands share: options, progress, the connection to a cluster."""
