"""What recipes cost in memory and time, before anything large is made. In several layers."""
