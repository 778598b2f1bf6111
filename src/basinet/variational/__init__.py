"""What variational methods share: the prior's expected energy, which layers may be perturbed, and how."""
