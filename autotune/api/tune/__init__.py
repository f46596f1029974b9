"""⑪ `tune` and `resume`: sessions, and what they found."""
