"""The curvature of a posterior around a point: what Laplace approximations and the local theory are made of."""
