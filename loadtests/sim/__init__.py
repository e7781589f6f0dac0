"""A simulated inference engine: one step loop with a KV cache, in real or in virtual time."""
