"""The version, in the one place that packaging and records read it from."""

VERSION = "0.2.0"
