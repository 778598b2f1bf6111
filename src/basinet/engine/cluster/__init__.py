"""Members on a Ray cluster: the driver, what runs on the nodes, and how the cluster is found."""
