"""Limits that hold for all replicas together: each has an allotment, and no more in flight.

The allotments of all live replicas at one backend add up to its limit at most. They are kept in
Redis and are moved by one script, which a replica calls in the background: no request waits for
it. A replica reports what it holds, and holds no more than that until it is told; so the script
gives to one only what the others have reported that they do not hold any more.

Where the limit is more than all want, the rest is shared out evenly beforehand, and nobody waits.
Where it is less, those who want no more keep what they use and a little beyond, those who do get
even shares of the rest, and what does not go into even shares goes from one to the next.

Where replicas have different limits for one backend, as while settings are rolled out, the lowest
holds for all: a replica could otherwise be left with nothing by others that think there is more.

Bounds. A replica that Redis cannot be reached from keeps what it holds, and takes an even part
where it holds less and is short. Where it is away for one alone, the others get its part once its
lease ends.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Sequence
from math import inf
from typing import Protocol

import msgspec

from gateway.shared.records import Away, Commands, Origin, Refused

logger = logging.getLogger("prefixgate.shared")

INTERVAL = 0.15
"""Seconds between exchanges, at most."""
EXCHANGES = 6
"""Exchanges in a lease, at least."""
SHORT_INTERVAL = 0.025
"""The same while anybody waits for a slot."""
KEEP = 0.1
"""Seconds for which one that was just given a slot keeps it while others want it: each time that a
slot changes hands it lies idle for an interval or two."""
SETTLING = 0.4
"""Seconds for which nobody gets more than it has, once Redis has lost what it knew: by then all
replicas have reported."""
PART = 256
"""Slots in one call at most: it must not keep Redis from other work."""

# One hash of replicas: "lease-end turn when-it-last-reported". One of slots; each slot's value has
# one entry for each replica: {held, used, wanted, when it was last given more, when it last
# reported, limit}. `born` is in both: where one was evicted, or cannot be read, both count as lost.
_SCRIPT = """
local replicas, slots, me = KEYS[1], KEYS[2], ARGV[1]
local turn, lease, settling = tonumber(ARGV[2]), tonumber(ARGV[3]), tonumber(ARGV[4])
local keep, known_of = tonumber(ARGV[5]), tonumber(ARGV[6])
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local born, last, before = nil, nil, -1
local live, count = {}, 0
local known = redis.call('HGETALL', replicas)
for i = 1, #known, 2 do
  if known[i] == 'born' then born = tonumber(known[i + 1])
  elseif known[i] == 'last' then last = tonumber(known[i + 1]) end
end
last = last or now
if not born or redis.call('HGET', slots, 'born') ~= string.format('%.0f', born) then born = now end
-- Nobody could report while Redis was away: that is nobody's fault.
local away = now - last > lease / 2
for i = 1, #known, 2 do
  local id = known[i]
  if id ~= 'born' and id ~= 'last' then
    local ends, its_turn, reported = string.match(known[i + 1], '^(%d+) (%d+) (%d+)$')
    if not ends then
      redis.call('HDEL', replicas, id)
    elseif id == me then
      before = tonumber(its_turn)
    elseif away then
      redis.call('HSET', replicas, id, (now + lease) .. ' ' .. its_turn .. ' ' .. reported)
      live[id], count = tonumber(reported), count + 1
    elseif tonumber(ends) < now then
      redis.call('HDEL', replicas, id)
    else
      live[id], count = tonumber(reported), count + 1
    end
  end
end
if turn <= before then return {} end
if lease == 0 then
  redis.call('HDEL', replicas, me)
  return {}
end
live[me], count = now, count + 1
-- Those that are known of and have not reported may have been slower to find Redis again.
if count < known_of and now - born < lease * 2 then settling = lease * 2 end

local function entries(raw)
  local readable, all = pcall(cmsgpack.unpack, raw)
  if not readable or type(all) ~= 'table' then return end
  for id, its in pairs(all) do
    if type(its) ~= 'table' then return end
    for _, at in ipairs({1, 2, 4, 5, 6}) do
      if type(its[at]) ~= 'number' then return end
    end
  end
  return all
end

local stored = {}
for i = 7, #ARGV, 5 do
  local raw = redis.call('HGET', slots, ARGV[i])
  stored[i] = raw and entries(raw) or {}
  if raw and not next(stored[i]) then born = now end
end
local answer = {}
for i = 7, #ARGV, 5 do
  local name, limit, held = ARGV[i], tonumber(ARGV[i + 1]), tonumber(ARGV[i + 2])
  local used, wanted = tonumber(ARGV[i + 3]), ARGV[i + 4] == '1'
  local all, own_limit = stored[i], limit
  local others = 0
  for id, its in pairs(all) do
    -- One that reports, but not of this slot, has no more of it.
    if not live[id] or its[5] < live[id] - lease then
      all[id] = nil
    elseif id ~= me then
      others = others + its[1]
      -- While settings are rolled out they differ.
      limit = math.min(limit, its[6])
    end
  end
  local mine = all[me]
  if not mine then
    mine = {held, used, wanted, 0, now, own_limit}
    all[me] = mine
    if now - born >= settling then held = math.max(used, math.min(held, limit - others)) end
  end
  mine[1], mine[2], mine[3], mine[5], mine[6] = held, used, wanted, now, own_limit

  local needs, total, fair, ahead = {}, 0, 0, 0
  for id, its in pairs(all) do
    local need = its[2] + math.min(its[2], math.floor(limit / (8 * count)))
    if its[3] then need = limit end
    local is_new = its[1] > 0 and now - its[4] < keep
    needs[#needs + 1] = {need, id, its[1], its[4], now - its[5] < settling, is_new}
    total = total + need
    if id == me then fair = need end
  end
  if total <= limit then
    fair = fair + math.floor((limit - total) / count)
  else
    table.sort(needs, function(a, b)
      if a[1] ~= b[1] then return a[1] < b[1] end
      if a[6] ~= b[6] then return a[6] end
      if a[3] ~= b[3] then return a[3] < b[3] end
      if a[4] ~= b[4] then return a[4] < b[4] end
      return a[2] < b[2]
    end)
    local left = limit
    for place, its in ipairs(needs) do
      local share = math.floor(left / (#needs - place + 1))
      if its[1] > share then
        -- Of what is left over, one each for the first of those who want more. What they have not
        -- fetched yet is kept for them, unless they do not report any more.
        local over = left - share * (#needs - place + 1)
        for rank = place, #needs do
          local due = share + ((rank - place < over) and 1 or 0)
          if needs[rank][2] == me then
            fair = due
            break
          end
          if needs[rank][5] then ahead = ahead + math.max(0, due - needs[rank][3]) end
        end
        break
      end
      left = left - its[1]
    end
  end
  local allowed = fair
  if fair > held then
    allowed = held
    if now - born >= settling then
      allowed = math.max(held, math.min(fair, limit - others - ahead))
    end
    if allowed > held then mine[1], mine[4] = allowed, now end
  end
  redis.call('HSET', slots, name, cmsgpack.pack(all))
  answer[#answer + 1] = allowed
end
local born_now = string.format('%.0f', born)
local own = (now + lease) .. ' ' .. turn .. ' ' .. now
redis.call('HSET', replicas, me, own, 'last', now, 'born', born_now)
redis.call('HSET', slots, 'born', born_now)
redis.call('PEXPIRE', replicas, lease * 20)
redis.call('PEXPIRE', slots, lease * 20)
-- Slots of backends that are gone: a few are looked at each time, for nobody says when one is.
local some = redis.call('HRANDFIELD', slots, 2, 'WITHVALUES')
for i = 1, #some, 2 do
  if some[i] ~= 'born' then
    local reported = 0
    for _, its in pairs(entries(some[i + 1]) or {}) do reported = math.max(reported, its[5]) end
    if reported < now - lease * 21 then redis.call('HDEL', slots, some[i]) end
  end
end
return answer
"""


class Ask(msgspec.Struct, frozen=True):
    """What a replica holds of one limit, and wants.

    Attributes:
        slot: names the limit.
        limit: for all replicas together.
        held: no more than this is in flight until the answer comes.
        used: of that, what is in flight now.
        wanted: more is wanted.
    """

    slot: str
    limit: int
    held: int
    used: int
    wanted: bool


class SlotHolder(Protocol):
    """Whom slots are exchanged for. Called on the event loop."""

    @property
    def is_short(self) -> bool:
        """Whether there is somebody to hurry for."""

    def asks(self) -> list[Ask]: ...

    def answered(self, allowed: Sequence[int]) -> None:
        """How many may be in flight, for each that was asked for last; what is in flight above
        that goes on, and counts as held."""

    def unanswered(self, seconds: float) -> None:
        """Redis is away, for so long."""


class Slots:
    """Exchanges a replica's slots for as long as it runs.

    Args:
        lease: seconds after which a silent replica's allotments fall to the others.
        replicas: how many there are, this one included, as far as is known.

    Attributes:
        refused: Redis's own words, while it refuses; "" otherwise.
    """

    def __init__(
        self,
        commands: Commands,
        origin: Origin,
        holder: SlotHolder,
        lease: float,
        replicas: Callable[[], int] = lambda: 1,
    ) -> None:
        self.refused = ""
        self._commands = commands
        self._name = origin.hex()
        self._keys = [commands.key("slots", "replicas"), commands.key("slots", "held")]
        self._holder = holder
        self._lease = lease
        self._replicas = replicas
        self._interval = min(INTERVAL, lease / EXCHANGES)
        self._answered_at = -inf
        self._turn = 0
        self._ends = False
        self._short = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        self._task = asyncio.create_task(self._run(), name="slots")

    async def stop(self) -> None:
        """Give all back, at the end of the replica."""
        self._ends = True
        self._short.set()
        if self._task is not None:
            await self._task  # an exchange that is under way is not broken off
            self._task = None
        with contextlib.suppress(Away, Refused):  # they go when the lease ends
            await self._call([], 0.0)

    def wake(self) -> None:
        """A slot is wanted now."""
        self._short.set()

    async def exchange(self) -> None:
        """Report what is held, and take what is given."""
        asks = self._holder.asks()
        allowed: list[int] = []
        loop = asyncio.get_running_loop()
        try:
            for start in range(0, len(asks) or 1, PART):
                part = asks[start : start + PART]
                answer = await self._call(part, self._lease)
                if len(answer) != len(part):
                    return  # overtaken by a later call
                allowed += answer
        except Away:
            self._holder.unanswered(loop.time() - self._answered_at)
        except Refused as refused:
            self._holder.unanswered(loop.time() - self._answered_at)
            if not self.refused:
                logger.warning("backends' limits are not shared: %s", refused)
            self.refused = str(refused)
        else:
            if self.refused:
                self.refused = ""
                logger.info("backends' limits are shared again")
            self._answered_at = loop.time()
            self._holder.answered(allowed)

    async def _call(self, asks: Sequence[Ask], lease: float) -> list[int]:
        self._turn += 1
        words: list[bytes | str | int | float] = [
            self._name,
            self._turn,
            round(lease * 1e3),
            round(SETTLING * 1e3),
            round(KEEP * 1e3),
            self._replicas(),
        ]
        for ask in asks:
            words += (ask.slot, ask.limit, ask.held, ask.used, int(ask.wanted))
        answer: list[int] = await self._commands.run(_SCRIPT, self._keys, words)
        return answer

    async def _run(self) -> None:
        while not self._ends:
            try:
                await self.exchange()
            except Exception:
                # Tickets were let go by what came, and a callback of theirs failed.
                logger.exception("an exchange of slots failed")
            if self._holder.is_short:
                await asyncio.sleep(SHORT_INTERVAL)
                continue
            if not self._ends:
                self._short.clear()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._interval):
                    await self._short.wait()
