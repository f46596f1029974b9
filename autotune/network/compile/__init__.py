"""⑩ From a network and one schedule per task to an artifact."""
