"""prefixgate: a prefix-aware reverse proxy for LLM inference servers."""
