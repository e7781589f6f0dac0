"""Routing rules that others published, to compare with: each in its own file, with the parameters
that its authors ship.

They satisfy `policies.base.Policy`, so a replay runs them through the same queues, leases and
index as the gateway's own policies. What that means for all of them:

- Where a rule keeps an index of its own that mirrors the engines' caches, it gets
  `RouteRequest.match` instead, which is at least as exact as any of theirs. Rules whose index is
  known to be wrong in a way that decides where requests go keep that index (`prefix_tree`).
- Load is the gateway's own count, exact and up to date, where theirs is scraped or reported.
- What a rule does to requests once they are placed (migration, transfer of KV blocks, order
  inside the engine) is left out.
- A rule that learns from its decisions learns when a request is sent, which for a router without a
  queue is the same moment.
"""
