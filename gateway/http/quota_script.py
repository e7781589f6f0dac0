"""The script that counts one API key's use over all replicas, inside Redis.

KEYS[1] is a hash: `window`, when the minute began, and a field for each replica with what that one
has let in: "number lease-end window requests tokens concurrent". Times are Redis's own, in
milliseconds, so that replicas' clocks do not matter.

A replica states its whole count each time, never a difference: what was lost on the way, came
twice, or was granted to somebody who no longer waited is put right by its next statement, no count
can fall below 0, and a Redis that came back empty knows all again once each has spoken. Statements
are numbered, so that one which was stuck on the way cannot undo a later one.
"""

from __future__ import annotations

QUOTA = """\
local replica, number = ARGV[1], tonumber(ARGV[2])
local lease, length = tonumber(ARGV[3]), tonumber(ARGV[4])
local claimed, requests, tokens, held =
  tonumber(ARGV[5]), tonumber(ARGV[6]), tonumber(ARGV[7]), tonumber(ARGV[8])
local most_requests, most_tokens, most_held =
  tonumber(ARGV[9]), tonumber(ARGV[10]), tonumber(ARGV[11])

local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local fields = redis.call('HGETALL', KEYS[1])
local start, own, others = nil, nil, {}
for at = 1, #fields, 2 do
  if fields[at] == 'window' then
    start = tonumber(fields[at + 1])
  elseif fields[at] == replica then
    own = fields[at + 1]
  else
    others[fields[at]] = fields[at + 1]
  end
end
if own and tonumber(string.match(own, '^%d+')) >= number then
  return {}
end

-- Not above 0 is an age: the replica has not heard of a window yet, but may have counted in one.
if claimed <= 0 then
  claimed = now + claimed
end
claimed = math.min(claimed, now)
-- The second for a server that was failed over to, and whose clock is behind.
if not start or now - start >= length or start - now > length then
  if start and now >= start and now - start < 2 * length then
    start = start + length
  elseif claimed + length > now then
    start = claimed
  else
    start = now
  end
end
-- Windows that replicas began on their own, or before the data was lost, need not be on the beat:
-- those count which had not ended when this one began.
local kept = 0
if start < claimed + length then
  kept = 1
else
  requests, tokens = 0, 0
end

local their_requests, their_tokens, their_held = 0, 0, 0
for name, entry in pairs(others) do
  local ends, window, r, t, h =
    string.match(entry, '^%d+ (%d+) (%d+) (%d+) (%d+) (%d+)$')
  local counts = ends and start < window + length
  if counts then
    their_requests = their_requests + r
    their_tokens = their_tokens + t
  end
  if ends and now < tonumber(ends) then
    their_held = their_held + h
  elseif not counts then
    redis.call('HDEL', KEYS[1], name)
  end
end

local answers = {}
for at = 12, #ARGV do
  local estimate = tonumber(ARGV[at])
  local used = their_tokens + tokens
  local answer = 0
  if most_held >= 0 and their_held + held >= most_held then
    answer = 3
  elseif most_requests >= 0 and their_requests + requests >= most_requests then
    answer = 1
  else
    requests = requests + 1
    if most_tokens >= 0 and used > 0 and used + estimate > most_tokens then
      answer = 2
    else
      tokens = tokens + estimate
      held = held + 1
    end
  end
  answers[#answers + 1] = answer
end

redis.call('HSET', KEYS[1], 'window', string.format('%.0f', start), replica, string.format(
  '%.0f %.0f %.0f %.0f %.0f %.0f', number, now + lease, start, requests, tokens, held))
redis.call('PEXPIRE', KEYS[1], math.max(2 * length, lease))
return {start, now - start, kept, their_requests, their_tokens, their_held, unpack(answers)}
"""
"""ARGV: replica, number of the statement, lease and window in ms, start of the window that the
counts are of (or minus its age), requests and tokens in it, requests under way; then the limits,
-1 for none; then the tokens that each request which asks is expected to take.

Returns nothing of an old statement; else when the window began, its age, whether the counts were
taken, what the others have used, and for each that asks: 0 let in, 1 too many requests, 2 tokens,
3 at once. One that is let in counts from then on, and so does one that wants too many tokens, as a
request.
"""
