"""⑪ `tune` and `resume`: sessions and their results."""
