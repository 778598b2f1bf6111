"""What members that repel each other compare: kernels, scores of particles, gradients with respect to inputs."""
