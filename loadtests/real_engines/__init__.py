"""Real vLLM engines behind the gateway, on a machine without a GPU."""
