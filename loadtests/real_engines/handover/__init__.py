"""Two real vLLM engines, of which one prefills for the other, behind the gateway."""
