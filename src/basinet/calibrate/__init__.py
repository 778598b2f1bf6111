"""Calibration by validation data: temperatures, weights of members, conformal sets. In several layers."""
