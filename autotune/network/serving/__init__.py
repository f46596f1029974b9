"""⑩ What servers of language models need: prefixes, drafts, steps of many requests."""
