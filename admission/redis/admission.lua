-- Decides a batch of admission operations in one call.
--
-- Where Redis has functions this is a library: it is run once, when it is
-- loaded, and then `decide` is called. Elsewhere it is a script, run anew in each
-- call. What must not outlive a call is set by begin(), first of all, so that a
-- call that failed half way leaves nothing to the next; what is kept from call
-- to call is made from its key alone and could be made again.
--
-- ARGV: 1 key prefix, 2 mode ('s' one Redis holds everything, 't' a tenant
-- shard of a cluster, 'p' the pool of a cluster), 3 outbox bound in records,
-- 4 retention of final records in ms, 5 number of templates, 6 of calendars,
-- 7 of tenants; then the templates (text, number of constraints, nine arguments
-- a constraint; or text and 0, to be taken apart here), the calendars, the tenants (three arguments each: shard, id,
-- calendar or 0) and the operations.
--
-- A template is a list of constraints as text, a calendar the boundaries of
-- the tenant's day and month. Operations name tenant and template by index; an
-- operation on a known reservation takes the template from its record instead,
-- so a changed quota document never changes what is released.
--
-- An operation is a letter and its arguments, as many as `width` says. They are
-- taken apart by Redis, not here: an argument costs a third of a capture.
--   R D     spec, lifetime, hash, units, terms       reserve; D only asks
--   U S C   spec, hash, created, ttl, total, flags, author, reason, terms
--   X       spec, hash                               expiry
--   Q       spec                                     standing
--   P H J Z L  template, member, hash, ttl, deadline pool leases
-- spec is tenant * 1000 + template, template 0 is an empty one; lifetime is
-- 'ttl,longest' in ms; flags are two digits, estimated and so-far.
--
-- The terms of a reservation never change: 'body|hold|weight|image|tenant|hash|
-- author|request|key|endpoint|model'. They go as they came into its record and
-- its events, so that nothing is put together here that was together before.
--
-- Order of work: read everything, decide each operation against the state in
-- memory, write everything. Keys are derived from the prefix; they all lie in
-- the slot of KEYS[1] when there is a cluster.
--
-- Every shard's epoch is read in every call and an operation on a shard without
-- one is refused, whatever other shards have: that is what keeps a Redis that
-- was emptied, or is being rebuilt shard by shard, from admitting anything it
-- cannot count. But a batch has one outbox entry. On a single Redis the records
-- of all its operations go to the stream of the first shard that has an epoch:
-- a record names its tenant, and the ledger's fold does not depend on order, so
-- it does not matter whose stream carries it. Ids stay unique, since an entry
-- has its stream's epoch and number.
--
-- Reply: lines. Now in ms, one line an operation, then the states of the
-- templates that the operations name (see state() at the end).

-- Lua's own, which a library is given only when it is called, like redis.call.
local call, floor, ceil, max, min
local match, gmatch, gsub, format, find
local concat, tonumber, unpack, type, pairs, error

local function findLua()
  call, floor, ceil, max, min = redis.call, math.floor, math.ceil, math.max, math.min
  match, gmatch, gsub, format, find = string.match, string.gmatch, string.gsub, string.format, string.find
  concat, tonumber, unpack = table.concat, _G.tonumber, _G.unpack
  type, pairs, error = _G.type, _G.pairs, _G.error
end

-- The call: its arguments and its time.
local args, prefix, mode, single, bound, retention
local now, nowUs, nowText, seconds

-- int writes a whole number. '%d' is exact below 2^53 and much faster than
-- '%.0f'; numbers repeat within a batch (deadlines, slots), so texts are kept.
local ints
local function int(n)
  local text = ints[n]
  if not text then
    text = format('%d', n)
    ints[n] = text
  end
  return text
end

-- Seconds after which a hold or a lease is worth asking for again.
local SHORT_WAIT = 5000
-- A body hash that is not known, after a rebuild from the ledger.
local ANY_BODY = '00000000000000000000000000000000'
local NOTHING = '0,0,0,0,0,0,0,0'
local UNITS, REQUESTS = 0, 9 -- metrics; 1 to 8 are the figures of a usage
local MAX_UNITS = 4503599627370496 -- 2^52, of one reservation
-- A count that has come this far, 2^53 - 1, stays there until its slot or its
-- period ends: above, a double is not exact, and a text of it could not be read.
local MAX_COUNT = 9007199254740991
local MAX_TAT = 2 ^ 62 -- of a rate, in us; a little off is no harm

-- corrupt ends the call: use that cannot be read is not known, which is not none.
local function corrupt(what)
  error('corrupt admission state: ' .. what)
end

-- Templates --------------------------------------------------------------

-- Kept from call to call, by mode and prefix, which they depend on, and text;
-- all are dropped when they are too many. A constraint is about 1 KiB.
local KEPT = 16384 -- constraints
local kept, nKept = {}, 0
local templates -- those of the call's mode and prefix

local function newTemplate(text)
  if nKept > KEPT then
    templates, nKept = {}, 0
    kept = {[mode .. prefix] = templates}
  end
  return {n = 0, periods = false, counters = false, figures = false, pool = '', cell = text .. '|'}
end

-- keep keeps a whole template: half of one would check half of the limits.
local function keep(text, t)
  templates[text] = t
  nKept = nKept + 1 + t.n
  return t
end

local function constraint(t, kind, pool, field, metric, units, a, b, budget, layer)
  local c = {
    kind = kind, pool = pool == '1', field = field, metric = tonumber(metric),
    units = tonumber(units), a = tonumber(a), b = tonumber(b), budget = budget == '1', key = false,
  }
  if kind == 'c' then
    t.counters = true
    if c.a > 0 then t.periods = true end
  end
  if c.metric ~= UNITS and c.metric ~= REQUESTS then t.figures = true end
  if c.pool then
    c.key = prefix .. '{pool}:l:' .. field
    if not single then t.pool = t.pool .. concat({kind, pool, field, metric, units, a, b, budget, layer}, ',') .. ';' end
  end
  t.n = t.n + 1
  t[t.n] = c
end

-- template takes constraints apart that are not known yet.
local function template(text)
  local t = templates[text]
  if t then return t end
  t = newTemplate(text)
  for kind, pool, field, metric, units, a, b, budget, layer in
      gmatch(text, '(%l),([01]),([^,;]*),(%d),(%d+),(%d+),(%d+),([01]),([^,;]*);') do
    constraint(t, kind, pool, field, metric, units, a, b, budget, layer)
  end
  local _, n = gsub(text, ';', '')
  if t.n ~= n then error('constraints cannot be read: ' .. text) end
  return keep(text, t)
end

-- Calendars: the start and the end (ms) of the period that now is in, for the
-- codes 1 (day) and 2 (month); ok is false when now is outside what was sent.
local function pick(first, second, third)
  first, second, third = tonumber(first), tonumber(second), tonumber(third)
  if seconds >= first and seconds < second then return {first, second * 1000} end
  if seconds >= second and seconds < third then return {second, third * 1000} end
  return nil
end

local function calendar(text)
  local d0, d1, d2, m0, m1, m2 = match(text, '^(%-?%d+),(%-?%d+),(%-?%d+),(%-?%d+),(%-?%d+),(%-?%d+)$')
  local day, month = pick(d0, d1, d2), pick(m0, m1, m2)
  return {ok = day ~= nil and month ~= nil, day, month}
end

local function inTime(t, cal)
  return not t.periods or (cal and cal.ok)
end

-- State in memory --------------------------------------------------------

local shards, shardList

local function shardOf(number)
  local s = shards[number]
  if not s then
    s = {base = prefix .. '{s' .. number .. '}:', epoch = false}
    shards[number] = s
    shardList[#shardList + 1] = s
  end
  return s
end

local leases, leaseList

local function leaseAt(key)
  local o = leases[key]
  if not o then
    o = {key = key, lease = true, delta = 0, card = false, add = false}
    leases[key] = o
    leaseList[#leaseList + 1] = o
  end
  return o
end

-- in use now: deadlines in the future, and what this batch changes.
local function inUse(o)
  if not o.exact then
    o.exact = call('ZCOUNT', o.key, '(' .. nowText, '+inf')
    o.card = o.exact
  end
  return o.exact + o.delta
end

-- atMost is inUse or a little more: leases that ended and are not swept yet
-- count. It is the cheaper question, and as good where it leaves room.
local function atMost(o)
  if not o.card then o.card = call('ZCARD', o.key) end
  return o.card + o.delta
end

local function soonestEnd(o)
  if not o.soonest then
    local first = call('ZRANGEBYSCORE', o.key, '(' .. nowText, '+inf', 'WITHSCORES', 'LIMIT', 0, 1)
    o.soonest = first[2] and max(1, min(SHORT_WAIT, tonumber(first[2]) - now)) or SHORT_WAIT
  end
  return o.soonest
end

local tenantsByID, tenantList

-- Tables are made with all their fields and places at once: one that grows is
-- made anew again and again, and there are several a reserve.
local BLANK = {false, false, false, false, false, false, false, false}

-- tenantOf makes a tenant, which is also the set of all its leases.
local function tenantOf(number, id)
  local t = tenantsByID[id]
  if not t then
    local s = shardOf(number)
    t = {
      id = id, shard = s, hash = s.base .. 't:' .. id, key = s.base .. 'l:' .. id, objects = false, n = 0, lists = false,
      known = false, dirty = false, lease = true, delta = 0, card = false, add = false,
    }
    tenantsByID[id] = t
    tenantList[#tenantList + 1] = t
    leaseList[#leaseList + 1] = t
  end
  return t
end

-- counterAt returns the state of a ring, a counter or a rate. A field's name
-- tells its shape: c is as good as any other constraint on it.
local function counterAt(t, c)
  local objects, n = t.objects, t.n
  for i = 1, n do
    if objects[i].c.field == c.field then return objects[i] end
  end
  local o
  if c.kind == 'r' then
    o = {c = c, tenant = t, text = false, dirty = false, head = 0, sum = 0, held = 0, cur = 0}
  elseif c.kind == 'c' then
    o = {c = c, tenant = t, text = false, dirty = false, start = false, sum = 0, held = 0, stop = false}
  else
    o = {c = c, tenant = t, text = false, dirty = false, tat = 0}
  end
  t.n = n + 1
  objects[n + 1] = o
  return o
end

local function listOf(t, text)
  local list = t.lists
  while list and list.text ~= text do list = list.next end
  return list
end

-- bind lists the state object of each constraint of a template; false stands
-- for one that this server does not hold.
local function bind(t, text)
  local list = listOf(t, text)
  if list then return list end
  local tpl = template(text)
  list = {
    text = text, tpl = tpl, tenant = t, next = t.lists, index = false, exact = false, life = false, answer = false,
    unpack(BLANK, 1, tpl.n)
  }
  t.lists = list
  if not t.objects then t.objects = {unpack(BLANK, 1, tpl.n)} end
  for i = 1, tpl.n do
    local c = tpl[i]
    if c.kind ~= 'l' then
      list[i] = counterAt(t, c)
    elseif c.pool then
      if mode ~= 't' then list[i] = leaseAt(c.key) end
    elseif c.field == 'leases' then
      list[i] = t
    else
      list[i] = leaseAt(t.key .. ':' .. c.field)
    end
  end
  return list
end

local function touch(o)
  o.text, o.dirty, o.tenant.dirty = false, true, true
end

-- Rings ------------------------------------------------------------------

-- Older slots are looked at when the newest one changes or use is taken back.
local function older(o)
  if not o.known then o.known, o.closed, o.base = {}, {}, o.head - o.c.b end
end

-- Older slots are hash fields '<field>#<number % slots>' with 'number:count';
-- a field with another number is one that left the window long ago. known and
-- closed are indexed from o.base, which keeps indexes small.
local function slots(o, from, to)
  older(o)
  local known, base, ask, numbers = o.known, o.base, {}, {}
  for number = from, to do
    if not known[number - base] then
      ask[#ask + 1] = o.c.field .. '#' .. int(number % o.c.b)
      numbers[#numbers + 1] = number
    end
  end
  if #ask > 0 then
    local values = call('HMGET', o.tenant.hash, unpack(ask))
    for i = 1, #numbers do
      local number, count = match(values[i] or '0:0', '^(%d+):(%d+)$')
      count = tonumber(count)
      if not count or count > MAX_COUNT then corrupt(ask[i] .. ' of ' .. o.tenant.id) end
      known[numbers[i] - base] = tonumber(number) == numbers[i] and count or 0
    end
  end
  return known
end

-- resum sums a ring anew: a sum at its end does not tell what it was made of.
local function resum(o)
  local sum, from = o.cur, o.head - o.c.b + 1
  while from < o.head do
    local to = min(o.head - 1, from + 119)
    local known, base = slots(o, from, to), o.base
    for number = from, to do sum = sum + known[number - base] end
    from = to + 1
  end
  o.sum = min(sum, MAX_COUNT)
end

-- advance brings a ring to now: the newest slot is closed and the slots that
-- left the window are subtracted. A clock before the newest slot counts as it.
local function advance(o)
  local slot = floor(now / o.c.a)
  local gap = slot - o.head
  if gap <= 0 then return end
  local full = o.sum >= MAX_COUNT
  if gap >= o.c.b then
    o.sum = 0
  else
    local leaving, base = slots(o, o.head - o.c.b + 1, slot - o.c.b), o.base
    for number = o.head - o.c.b + 1, slot - o.c.b do
      o.sum = o.sum - leaving[number - base]
    end
    if o.sum < 0 then o.sum = 0 end
    for number = o.head + 1, slot - 1 do o.known[number - base] = 0 end
    o.known[o.head - base] = o.cur
    if o.cur > 0 then o.closed[o.head - base] = true end
  end
  o.head, o.cur, o.text = slot, 0, false
  if full and gap < o.c.b then resum(o) end
end

-- ringWait is how long until at least need units have left the window.
local function ringWait(o, need)
  local left = 0
  local from = o.head - o.c.b + 1
  while from < o.head do
    local to = min(o.head - 1, from + 119)
    local known, base = slots(o, from, to), o.base
    for number = from, to do
      left = left + known[number - base]
      if left >= need then return max(1, (number + o.c.b) * o.c.a - now) end
    end
    from = to + 1
  end
  return max(1, (o.head + o.c.b) * o.c.a - now)
end

-- Preparing state: take over what was read, then bring it to now ------------

-- Numbers are kept as 'a,b,c', so that all that was read can be parsed by one
-- call that makes one table. at is the place before an object's numbers, and true
-- follows them: a text with more or fewer must not shift what others have.
local SIZE = {r = 4, c = 3, g = 1}
local ABSENT = {r = '-1,0,0,0', c = 'false,0,0', g = '0'}

local function load(o, value, numbers, at)
  local kind = o.c.kind
  local size = SIZE[kind]
  if value then
    local most = kind == 'g' and MAX_TAT or MAX_COUNT
    for i = at + 1, at + size do
      local n = numbers[i]
      if type(n) ~= 'number' or not (n >= 0 and n <= most and n % 1 == 0) then
        corrupt(o.c.field .. ' of ' .. o.tenant.id)
      end
    end
  end
  if numbers[at + size + 1] ~= true then corrupt(o.c.field .. ' of ' .. o.tenant.id) end
  if kind == 'r' then
    o.head, o.sum, o.held, o.cur = numbers[at + 1], numbers[at + 2], numbers[at + 3], numbers[at + 4]
    if value then
      o.text = value
      advance(o)
    else
      o.head = floor(now / o.c.a)
    end
  elseif kind == 'c' then
    o.start, o.sum, o.held, o.text = numbers[at + 1], numbers[at + 2], numbers[at + 3], value
  else
    o.tat = numbers[at + 1]
  end
  return at + size + 1
end

-- roll starts a counter's new period. A stored start after the picked one (a
-- clock that ran back, a tenant that changed zones) stays.
local function roll(o, cal)
  if o.stop then return end
  if o.c.a == 0 then
    o.start, o.stop = o.start or 0, 0
    return
  end
  local period = cal[o.c.a]
  o.stop = period[2]
  if not o.start then
    o.start = period[1]
  elseif o.start < period[1] then
    o.start, o.sum, o.text = period[1], 0, false
  end
end

local function prepare(list, cal)
  local tpl = list.tpl
  if not tpl.periods and not tpl.counters then return end
  for i = 1, tpl.n do
    if tpl[i].kind == 'c' then roll(list[i], cal) end
  end
end

-- state is what an answer tells of a constraint. A reserve tells of leases what
-- its decision asked for, a standing exactly what is in use.
local function state(o, exact)
  if not o then return '-' end
  if o.lease then return int(exact and inUse(o) or atMost(o)) end
  if o.text then return o.text end
  if o.c.kind == 'r' then
    o.text = format('%d,%d,%d,%d', o.head, o.sum, o.held, o.cur)
  elseif o.c.kind == 'c' then
    o.text = format('%d,%d,%d', o.start or 0, o.sum, o.held)
  else
    o.text = int(o.tat)
  end
  return o.text
end

-- Figures ----------------------------------------------------------------

local figures

local function parseUsage(text)
  local v = figures[text]
  if not v then
    v = {match(text, '^(%d+),(%d+),(%d+),(%d+),(%d+),(%d+),(%d+),(%d+)$')}
    for i = 1, 8 do v[i] = tonumber(v[i]) end
    figures[text] = v
  end
  return v
end

local function unitsOf(v, weight, image)
  return (v[1] + v[2] + v[6] * image) * weight
end

-- Records ----------------------------------------------------------------

-- '2|state|seq|created|deadline|latest|total|estimated|template|terms'. What was
-- read, or reserved by this batch, is taken apart when an operation asks for it.
local records, changed
local fresh, nFresh = {}, 0 -- keys and texts of what this batch reserved

local function recordAt(key)
  local r = records[key]
  if not r or type(r) == 'table' then return r end
  local st, seq, created, deadline, latest, total, estimated, tpl, terms, body, hold, weight, image =
    match(r, '^2|(%l)|(%d+)|(%d+)|(%d+)|(%d+)|([%d,]+)|([01])|([^|]*)|((%x+)|([%d,]+)|(%d+)|(%d+)|.*)$')
  if st then
    r = {
      key = key, text = r, st = st, seq = tonumber(seq), created = created, deadline = tonumber(deadline),
      latest = tonumber(latest), total = total, estimated = estimated, tpl = tpl, terms = terms, body = body,
      hold = hold, weight = tonumber(weight), image = tonumber(image), changed = false,
    }
  else
    r = false
  end
  records[key] = r
  return r
end

local function recordText(r)
  if not r.text then
    r.text = '2|' .. r.st .. '|' .. int(r.seq) .. '|' .. r.created .. '|' .. int(r.deadline) .. '|' .. int(r.latest) .. '|' ..
      r.total .. '|' .. r.estimated .. '|' .. r.tpl .. '|' .. r.terms
  end
  return r.text
end

-- The outbox: records of this batch, three pieces each, and the shard whose
-- stream takes them.
local log, nLog, outbox, added, trimmed = {}, 0, false, 0, 0

-- Refusals ---------------------------------------------------------------

-- Each gives: rank (3 a spent budget, 2 never, 1 wait), reason, wait in ms.
local function whyLease(o)
  return 1, 'c', soonestEnd(o)
end

local function whyCount(c, o, cost)
  local spent = o.sum + cost > c.units
  if cost <= c.units and not spent then
    return 1, 'h', soonestEnd(o.tenant)
  end
  local reason = cost > c.units and 'l' or (c.budget and 's' or 'w')
  if c.budget or (c.kind == 'c' and c.a == 0) then
    return reason == 's' and 3 or 2, reason, -1
  end
  if c.kind == 'c' then return 1, reason, max(1, o.stop - now) end
  if reason == 'l' then return 1, reason, ringWait(o, max(1, o.sum)) end
  return 1, reason, ringWait(o, o.sum + cost - c.units)
end

local function costOf(c, v, units)
  if c.metric == UNITS then return units end
  if c.metric == REQUESTS then return 1 end
  return v[c.metric]
end

local costs = {} -- what binding found each constraint to cost

-- binding checks every constraint, narrow to wide, and returns the one that
-- binds: a spent budget before all, then what never passes, then the longest
-- wait; of equals the narrowest. Nothing is written.
local function binding(list, v, units)
  local tpl = list.tpl
  local worst, worstRank, worstWait
  for i = 1, tpl.n do
    local o, c = list[i], tpl[i]
    local rank, reason, wait, used, held, cost
    if not o then
      -- another server's
    elseif c.kind == 'l' then
      if atMost(o) + 1 > c.units and inUse(o) + 1 > c.units then
        used, held, cost = inUse(o), 0, 1
        rank, reason, wait = whyLease(o)
      end
    elseif c.kind == 'g' then
      local late = max(o.tat, nowUs) + c.a - c.b - nowUs
      if late > 0 then rank, reason, wait, used, held, cost = 1, 'r', ceil(late / 1000), c.units, 0, 1 end
    else
      cost = costOf(c, v, units)
      costs[i] = cost
      if cost > 0 and o.sum + o.held + cost > c.units then
        used, held = o.sum, o.held
        rank, reason, wait = whyCount(c, o, cost)
      end
    end
    if rank and (not worst or rank > worstRank or (rank == worstRank and wait > worstWait)) then
      worst = format('%d,%s,%d,%d,%d,%d', i - 1, reason, used, held, cost, wait)
      worstRank, worstWait = rank, wait
    end
  end
  return worst
end

-- Changes ----------------------------------------------------------------

local boundList

local function boundIndex(list, exact)
  if exact then list.exact = true end
  if not list.index then
    boundList[#boundList + 1] = list
    list.index = int(#boundList)
  end
  return list.index
end

local function addLease(o, member, deadline)
  local add = o.add
  if add then
    local n = #add
    add[n + 1], add[n + 2] = deadline, member
  else
    o.add = {deadline, member}
  end
end

-- A lifetime's deadline and what reserves with it have in common.
local lives

local function lifeOf(text)
  local l = lives[text]
  if not l then
    local ttl, longest = match(text, '^(%d+),(%d+)$')
    ttl, longest = tonumber(ttl), tonumber(longest)
    local deadline = int(now + min(ttl, longest))
    l = {
      deadline = deadline, answer = '|' .. nowText .. '|' .. deadline, event = 'r|' .. nowText .. '|' .. deadline .. '|',
      record = '2|h|1|' .. nowText .. '|' .. deadline .. '|' .. int(now + longest) .. '|' .. NOTHING .. '|0|',
    }
    lives[text] = l
  end
  return l
end

local function reserve(i, t, list, cal, key)
  if not t.shard.epoch then return 'E' end
  local tpl, terms = list.tpl, args[i + 5]
  local r = recordAt(key)
  if r then
    if r.st == 't' then return 'T' end
    if r.body ~= ANY_BODY and r.body ~= match(terms, '^%x+') then return 'M' end
    if inTime(tpl, cal) then prepare(list, cal) end
    return 'Y|' .. boundIndex(list) .. '|' .. recordText(r)
  end
  if added - trimmed >= bound then return 'B' end
  if not inTime(tpl, cal) then return 'K' end
  prepare(list, cal)

  local v = tpl.figures and parseUsage(match(terms, '^%x+|([%d,]+)'))
  local refusal = binding(list, v, tonumber(args[i + 4]))
  if refusal then return 'F|' .. boundIndex(list) .. '|' .. refusal end
  if args[i] == 'D' then return 'P|' .. boundIndex(list) end

  local hash, life = args[i + 3], lifeOf(args[i + 2])
  local deadline = life.deadline
  for k = 1, tpl.n do
    local o = list[k]
    if not o then
      -- another server's
    elseif o.lease then
      if o ~= t then
        o.delta = o.delta + 1
        addLease(o, hash, deadline)
      end
    elseif o.tat then
      o.tat = max(o.tat, nowUs) + tpl[k].a
      o.text, o.dirty = false, true
    else
      local cost = costs[k]
      if cost > 0 then
        if tpl[k].metric == REQUESTS then
          o.sum = min(MAX_COUNT, o.sum + 1)
          if o.cur then o.cur = min(MAX_COUNT, o.cur + 1) end
        else
          o.held = min(MAX_COUNT, o.held + cost)
        end
        o.text, o.dirty = false, true
      end
    end
  end
  -- Every hold is here, with or without a lease limit: it has a deadline.
  t.delta = t.delta + 1
  addLease(t, hash, deadline)
  t.dirty, t.joined = true, true

  local text = life.record .. tpl.cell .. terms
  records[key] = text
  fresh[nFresh + 1], fresh[nFresh + 2] = key, text
  nFresh = nFresh + 2
  log[nLog + 1], log[nLog + 2], log[nLog + 3] = life.event, terms, '\n'
  nLog, added = nLog + 3, added + 1
  if list.life ~= life then list.life, list.answer = life, 'A|' .. boundIndex(list) .. life.answer end
  return list.answer
end

-- Everything but reserves. Functions are made when first needed: where this is
-- run anew in each call, most calls are reserves, and making a function costs as
-- much as a small decision.
local function others()
  -- take removes use that turned out not to be: from the newest slot backwards.
  -- What has left the window already is not taken, nor anything from a full slot:
  -- what else it had is not known.
  local function take(o, amount)
    if o.cur >= MAX_COUNT then return end
    local full = o.sum >= MAX_COUNT
    local part = min(amount, o.cur)
    o.cur, o.sum, amount = o.cur - part, o.sum - part, amount - part
    local to, low = o.head - 1, o.head - o.c.b + 1
    while amount > 0 and to >= low do
      local from = max(low, to - 59)
      local known, base = slots(o, from, to), o.base
      for number = to, from, -1 do
        if known[number - base] >= MAX_COUNT then return end
        part = min(amount, known[number - base])
        if part > 0 then
          known[number - base], o.closed[number - base] = known[number - base] - part, true
          o.sum, amount = o.sum - part, amount - part
        end
      end
      to = from - 1
    end
    if full then resum(o) end
  end

  local function excessive(text, r)
    return unitsOf(parseUsage(text), r.weight, r.image) > MAX_UNITS
  end

  local function larger(a, b)
    if a == b then return a end
    local x, y, out, grown = parseUsage(a), parseUsage(b), {}, false
    for i = 1, 8 do
      if y[i] > x[i] then grown = true end
      out[i] = int(max(x[i], y[i]))
    end
    return grown and concat(out, ',') or a
  end

  local function change(r)
    r.text = false
    if not r.changed then
      r.changed = true
      changed[#changed + 1] = r
    end
  end

  -- emit notes an event; the outbox reader makes it whole. kind: u s c x; reserves
  -- are shorter and written by reserve().
  local function emit(kind, st, r, before, flag, author, reason)
    log[nLog + 1] = kind .. '|' .. nowText .. '|' .. st .. '|' .. int(r.seq) .. '|' .. r.created .. '|' .. int(r.deadline) .. '|' ..
      before .. '|' .. r.total .. '|' .. flag .. '|' .. author .. '|' .. reason .. '|'
    log[nLog + 2], log[nLog + 3] = r.terms, '\n'
    nLog, added = nLog + 3, added + 1
  end

  local function remLease(o, member)
    local rem = o.rem
    if rem then rem[#rem + 1] = member else o.rem = {member} end
  end

  local function dropLease(o, member, counted)
    if counted then o.delta = o.delta - 1 end
    remLease(o, member)
  end

  local function dropLeases(list, t, member, counted)
    dropLease(t, member, counted)
    for i = 1, list.tpl.n do
      local o = list[i]
      if o and o.lease and o ~= t then dropLease(o, member, counted) end
    end
  end

  -- move records use and what remains held, after r.total changed from before.
  -- ended drops the whole hold.
  local function move(list, r, before, ended)
    local old, new, hold = parseUsage(before), parseUsage(r.total), parseUsage(r.hold)
    local weight, image = r.weight, r.image
    local oldUnits, newUnits, holdUnits = unitsOf(old, weight, image), unitsOf(new, weight, image), unitsOf(hold, weight, image)
    for i = 1, list.tpl.n do
      local o, c = list[i], list.tpl[i]
      if o and (c.kind == 'r' or c.kind == 'c') and c.metric ~= REQUESTS then
        local was, is, held = oldUnits, newUnits, holdUnits
        if c.metric ~= UNITS then was, is, held = old[c.metric], new[c.metric], hold[c.metric] end
        local release = max(0, held - was) - (ended and 0 or max(0, held - is))
        if release ~= 0 or is ~= was then
          o.held = max(0, o.held - release)
          if is > was then
            o.sum = min(MAX_COUNT, o.sum + (is - was))
            if o.cur then o.cur = min(MAX_COUNT, o.cur + (is - was)) end
          elseif is < was and o.cur then
            take(o, was - is)
          elseif is < was and o.sum < MAX_COUNT then
            o.sum = max(0, o.sum - (was - is))
          end
          touch(o)
        end
      end
    end
  end

  local function expire(t, hash, r, list)
    r.st, r.seq = 'x', r.seq + 1
    dropLeases(list, t, hash, false)
    change(r)
    emit('x', 'x', r, r.total, '-', 'gateway', '')
  end

  local function answer(replayed, stop, list, r)
    return 'O|' .. replayed .. '|' .. stop .. '|' .. (list and list.tpl.pool or '') .. '|' .. recordText(r)
  end

  -- outgrown returns the constraint that a reservation beyond its hold does not
  -- fit any more, as binding() does.
  local function outgrown(list, r)
    local v, hold = parseUsage(r.total), parseUsage(r.hold)
    local weight, image = r.weight, r.image
    local units, holdUnits = unitsOf(v, weight, image), unitsOf(hold, weight, image)
    local worst, worstRank, worstWait
    for i = 1, list.tpl.n do
      local o, c = list[i], list.tpl[i]
      if o and (c.kind == 'r' or c.kind == 'c') and c.metric ~= REQUESTS then
        local excess = c.metric == UNITS and units - holdUnits or v[c.metric] - hold[c.metric]
        if excess > 0 and o.sum + o.held > c.units then
          -- The excess is in the sum already: ask what refuses nothing more.
          local rank, reason, wait = whyCount(c, o, 0)
          if not worst or rank > worstRank or (rank == worstRank and wait > worstWait) then
            worst = format('%d,%s,%d,%d,%d,%d', i - 1, reason, o.sum, o.held, excess, wait)
            worstRank, worstWait = rank, wait
          end
        end
      end
    end
    return worst
  end

  -- Operations on a reservation: i is where their arguments begin.
  local function report(i, t, r, list)
    local hash, ttl, reported = args[i + 2], tonumber(args[i + 4]), args[i + 5]
    local estimated = args[i + 6]:sub(1, 1)
    if r.st == 's' or r.st == 'c' then
      if larger(r.total, reported) == r.total then return answer('1', '', nil, r) end
      return 'D|' .. recordText(r)
    end
    local before = r.total
    local total = larger(before, reported)
    if excessive(total, r) then return 'V' end
    if r.st == 'h' and r.deadline <= now then expire(t, hash, r, list) end
    local deadline = r.deadline
    if r.st == 'h' and ttl > 0 then deadline = max(deadline, min(now + ttl, r.latest)) end
    local stop = r.st == 'x' and 'e' or ''
    if total == before and deadline == r.deadline then
      if stop == '' then stop = outgrown(list, r) or '' end
      return answer('1', stop, list, r)
    end
    r.total, r.seq, r.estimated = total, r.seq + 1, estimated
    if total ~= before then move(list, r, before, false) end
    if deadline ~= r.deadline then
      r.deadline = deadline
      local text = int(deadline)
      addLease(t, hash, text)
      for k = 1, list.tpl.n do
        local o = list[k]
        if o and o.lease and o ~= t then addLease(o, hash, text) end
      end
    end
    change(r)
    emit('u', r.st, r, before, estimated == '1' and 'e' or '-', args[i + 7], args[i + 8])
    if stop == '' then stop = outgrown(list, r) or '' end
    return answer('0', stop, list, r)
  end

  local function finish(i, t, r, list)
    local final = args[i] == 'S' and 's' or 'c'
    local total, flags = args[i + 5], args[i + 6]
    local sofar = flags:sub(2, 2) == '1'
    if r.st == 's' or r.st == 'c' then
      if r.st == final and (sofar or r.total == total) then return answer('1', '', nil, r) end
      return 'D|' .. recordText(r)
    end
    if not sofar and excessive(total, r) then return 'V' end
    local before = r.total
    local counted = r.st == 'h' and r.deadline > now
    if not sofar then r.total, r.estimated = total, flags:sub(1, 1) end
    move(list, r, before, true)
    dropLeases(list, t, args[i + 2], counted)
    r.st, r.seq, r.tpl = final, r.seq + 1, ''
    change(r)
    emit(final, final, r, before, r.estimated == '1' and 'e' or '-', args[i + 7], args[i + 8])
    return answer('0', '', list, r)
  end

  -- tombstone ends a request that was never reserved, so that it cannot be later.
  local function tombstone(i, key)
    local r = {
      key = key, text = false, st = 't', seq = 1, created = nowText, deadline = now, latest = now, total = NOTHING,
      estimated = '0', tpl = '', terms = args[i + 9], body = ANY_BODY, hold = NOTHING, weight = 1000, image = 0, changed = false,
    }
    records[key] = r
    change(r)
    emit('c', 'c', r, NOTHING, 't', args[i + 7], args[i + 8])
    return answer('0', '', nil, r)
  end

  -- A request id with a '~' is one that no client may use: the reservation was
  -- made on a client's behalf, and whoever made it knows what it comes to. To a
  -- client it is as if it did not exist.
  local function notTheirs(terms)
    if not find(terms, '~', 1, true) then return false end
    local request = match(terms, '^[^|]*|[^|]*|[^|]*|[^|]*|[^|]*|[^|]*|[^|]*|([^|]*)')
    return find(request, '~', 1, true) ~= nil
  end

  local function later(i, t, _, cal, key)
    if not t.shard.epoch then return 'E' end
    local kind, created, r = args[i], args[i + 3], recordAt(key)
    if not r then
      if kind == 'C' and args[i + 9] ~= '' then return tombstone(i, key) end
      return 'N'
    end
    if created ~= '' and created ~= r.created then return 'N' end
    if args[i + 7] == 'client' and notTheirs(r.terms) then return 'N' end
    if r.st == 't' then
      if kind == 'C' then return answer('1', '', nil, r) end
      return 'T'
    end
    local list
    if r.st == 'h' or r.st == 'x' then
      list = listOf(t, r.tpl)
      if not inTime(list.tpl, cal) then return 'K' end
      prepare(list, cal)
    end
    if kind == 'U' then return report(i, t, r, list) end
    return finish(i, t, r, list)
  end

  local function sweep(i, t, _, _, key)
    if not t.shard.epoch then return 'E' end
    local hash, r = args[i + 2], recordAt(key)
    if not r or (r.st ~= 'h' and r.st ~= 'x') then
      dropLease(t, hash, false)
      return 'X|0'
    end
    if r.st == 'x' then
      dropLeases(listOf(t, r.tpl), t, hash, false)
      return 'X|0'
    end
    if r.deadline > now then return 'X|0' end
    expire(t, hash, r, listOf(t, r.tpl))
    return 'X|1'
  end

  local function standing(_, _, list, cal)
    if not inTime(list.tpl, cal) then return 'K' end
    prepare(list, cal)
    return 'P|' .. boundIndex(list, true)
  end

  -- Pool leases of a cluster: taken under the attempt's own name and a short
  -- deadline (P), then kept under the reservation's (H, or J where it must be
  -- there already), or given back (Z); L only looks.
  local function pool(i, _, list)
    local kind, member, hash = args[i], args[i + 2], args[i + 3]
    if kind == 'P' then
      local refusal = binding(list, nil, 0)
      if refusal then return 'F|' .. boundIndex(list) .. '|' .. refusal end
    end
    if kind == 'J' then
      for k = 1, list.tpl.n do
        local o = list[k]
        if not call('ZSCORE', o.key, hash) then
          return 'F|' .. boundIndex(list) .. '|' .. format('%d,c,%d,0,1,%d', k - 1, inUse(o), soonestEnd(o))
        end
      end
    end
    for k = 1, list.tpl.n do
      local o = list[k]
      if kind == 'L' then
        -- its state is in the reply
      elseif kind == 'P' then
        o.delta = o.delta + 1
        addLease(o, member, int(now + tonumber(args[i + 4])))
      elseif kind == 'H' or kind == 'J' then
        addLease(o, hash, args[i + 5])
        if member ~= '' then remLease(o, member) end
      else
        remLease(o, member)
      end
    end
    return 'P|' .. boundIndex(list, kind == 'L')
  end

  return {
    R = reserve, D = reserve, U = later, S = later, C = later, X = sweep, Q = standing,
    P = pool, H = pool, J = pool, Z = pool, L = pool,
  }
end

-- The call's beginning ----------------------------------------------------

local function begin(argv)
  if not call then findLua() end
  args, ints = argv, {}
  local clock = call('TIME')
  nowUs = clock[1] * 1000000 + clock[2]
  now = floor(nowUs / 1000)
  seconds, nowText = floor(now / 1000), int(now)

  prefix, mode = args[1], args[2]
  single = mode == 's'
  bound, retention = tonumber(args[3]), args[4]
  templates = kept[mode .. prefix]
  if not templates then
    templates = {}
    kept[mode .. prefix] = templates
  end

  shards, shardList, leases, leaseList, tenantsByID, tenantList = {}, {}, {}, {}, {}, {}
  figures, lives, boundList = {}, {}, {}
  records, changed, nFresh = {}, {}, 0
  nLog, outbox, added, trimmed = 0, false, 0, 0
end

-- Reading ----------------------------------------------------------------

local width = {R = 6, D = 6, U = 10, S = 10, C = 10, X = 3, Q = 2, P = 6, H = 6, J = 6, Z = 6, L = 6}
local decides = {R = reserve, D = reserve}

-- What each operation is about, by its number, and the keys to read. These and
-- other lists are used again by the next call, as far as it counts.
local places, opTenants, opLists, opCalendars, opKeys, nOps = {}, {}, {}, {}, {}, 0
local keys, nKeys, nShards = {}, 0, 0

-- takeApart finds what each operation is about.
local function takeApart()
  local sent = {[0] = ''} -- the call's templates by index
  local at = 7
  for i = 1, tonumber(args[5]) do
    local text, n = args[at + 1], tonumber(args[at + 2])
    sent[i], at = text, at + 2
    if n > 0 then
      local t = newTemplate(text)
      for _ = 1, n do
        constraint(t, unpack(args, at + 1, at + 9))
        at = at + 9
      end
      keep(text, t)
    end
  end
  local calendars = {}
  for i = 1, tonumber(args[6]) do calendars[i] = calendar(args[at + i]) end
  at = at + tonumber(args[6])
  local tenants, tenantCalendars = {}, {}
  for i = 1, tonumber(args[7]) do
    tenants[i] = tenantOf(args[at + 1], args[at + 2])
    tenantCalendars[i] = calendars[tonumber(args[at + 3])] or false
    at = at + 3
  end

  nOps, nShards = 0, #shardList
  for i = 1, nShards do keys[i] = shardList[i].base .. 'epoch' end
  nKeys = nShards

  local i, last = at + 1, #args
  while i <= last do
    local kind, spec = args[i], tonumber(args[i + 1])
    nOps = nOps + 1
    places[nOps], opTenants[nOps], opLists[nOps], opCalendars[nOps], opKeys[nOps] = i, false, false, false, false
    if not decides[kind] then decides = others() end
    if mode == 'p' then
      local list = {tpl = template(sent[spec]), index = false, exact = false}
      for k = 1, list.tpl.n do list[k] = leaseAt(list.tpl[k].key) end
      opLists[nOps] = list
    else
      local index = floor(spec / 1000)
      local t = tenants[index]
      opTenants[nOps], opCalendars[nOps] = t, tenantCalendars[index]
      local hash
      if kind == 'R' or kind == 'D' then
        hash = args[i + 3]
      elseif kind ~= 'Q' then
        hash = args[i + 2]
      end
      if hash then
        nKeys = nKeys + 1
        keys[nKeys] = t.shard.base .. 'r:' .. t.id .. ':' .. hash
        opKeys[nOps] = keys[nKeys]
      end
      spec = spec - index * 1000
      if kind == 'R' or kind == 'D' or kind == 'Q' then
        opLists[nOps] = bind(t, sent[spec])
      end
    end
    i = i + width[kind]
  end
end

local fields, read = {'@'}, {}

local function fetch()
  if nKeys > 0 then
    local values = call('MGET', unpack(keys, 1, nKeys))
    for k = 1, nShards do
      local s = shardList[k]
      s.epoch = values[k]
      if s.epoch and not outbox then outbox = s end
    end
    for k = nShards + 1, nKeys do records[keys[k]] = values[k] end
  end
  if outbox then
    local values = call('HMGET', outbox.base .. 'meta', 'added', 'trimmed')
    added, trimmed = tonumber(values[1] or 0), tonumber(values[2] or 0)
    if not added or not trimmed then corrupt(outbox.base .. 'meta') end
    trimmed = min(trimmed, added)
  end
  for k = 1, nOps do
    if opKeys[k] and not opLists[k] then
      local r = recordAt(opKeys[k])
      if r and (r.st == 'h' or r.st == 'x') then bind(opTenants[k], r.tpl) end
    end
  end
  local nRead = 0
  for k = 1, #tenantList do
    local t = tenantList[k]
    local objects, n = t.objects, t.n
    for j = 1, n do fields[j + 1] = objects[j].c.field end
    local values = call('HMGET', t.hash, unpack(fields, 1, n + 1))
    t.known = values
    for j = 1, n do read[nRead + j] = values[j + 1] or ABSENT[objects[j].c.kind] end
    nRead = nRead + n
  end
  if nRead > 0 then
    local numbers, place = cjson.decode('[' .. concat(read, ',true,', 1, nRead) .. ',true]'), 0
    for k = 1, #tenantList do
      local t = tenantList[k]
      local objects, values = t.objects, t.known
      for j = 1, t.n do place = load(objects[j], values[j + 1], numbers, place) end
      t.known = values[1]
    end
    if numbers[place + 1] ~= nil then corrupt('more numbers than were asked for') end
  else
    for k = 1, #tenantList do tenantList[k].known = tenantList[k].known[1] end
  end
end

-- Deciding ---------------------------------------------------------------

local out = {}

local function answers()
  out[1] = nowText
  local nOut = 1
  for k = 1, nOps do
    local place = places[k]
    out[nOut + 1], out[nOut + 2] = '\n', decides[args[place]](place, opTenants[k], opLists[k], opCalendars[k], opKeys[k])
    nOut = nOut + 2
  end

  for k = 1, #boundList do
    local list = boundList[k]
    out[nOut + 1], nOut = '\n', nOut + 1
    for j = 1, list.tpl.n do
      out[nOut + 1], out[nOut + 2] = state(list[j], list.exact), ';'
      nOut = nOut + 2
    end
  end
  return concat(out, '', 1, nOut)
end

-- Writing ----------------------------------------------------------------

local set = {}

local function write()
  -- The first write is one that a full Redis refuses, so that a batch is written
  -- whole or not at all.
  if nLog > 0 then call('HSET', outbox.base .. 'meta', 'added', int(added)) end
  for k = 1, #tenantList do
    local t = tenantList[k]
    local joins = t.joined and not t.known
    if t.dirty or joins then
      local n = 0
      for j = 1, t.n do
        local o = t.objects[j]
        if o.dirty then
          set[n + 1], set[n + 2] = o.c.field, state(o)
          n = n + 2
          if o.closed then
            for index in pairs(o.closed) do
              set[n + 1] = o.c.field .. '#' .. int((index + o.base) % o.c.b)
              set[n + 2] = format('%d:%d', index + o.base, o.known[index])
              n = n + 2
            end
          end
        end
      end
      if joins then
        set[n + 1], set[n + 2] = '@', '1'
        n = n + 2
        call('SADD', t.shard.base .. 'tenants', t.id)
      end
      if n > 0 then call('HSET', t.hash, unpack(set, 1, n)) end
    end
  end
  for k = 1, #leaseList do
    local o = leaseList[k]
    if o.add then
      call('ZADD', o.key, unpack(o.add))
      if mode == 'p' then call('ZREMRANGEBYSCORE', o.key, '-inf', nowText) end
    end
    if o.rem then call('ZREM', o.key, unpack(o.rem)) end
  end
  -- What was reserved and then changed in one batch is written twice, the change
  -- last.
  for k = 1, #changed do
    local r = changed[k]
    if r.st == 'h' or r.st == 'x' then
      fresh[nFresh + 1], fresh[nFresh + 2] = r.key, recordText(r)
      nFresh = nFresh + 2
    end
  end
  if nFresh > 0 then call('MSET', unpack(fresh, 1, nFresh)) end
  for k = 1, #changed do
    local r = changed[k]
    if r.st ~= 'h' and r.st ~= 'x' then call('SET', r.key, recordText(r), 'PX', retention) end
  end
  if nLog > 0 then
    call('XADD', outbox.base .. 'outbox', '*', 'n', nLog / 3, 'c', int(added), 'p', outbox.epoch, 'e', concat(log, '', 1, nLog - 1)) -- no line follows the last
  end
end

local function decide(_, argv)
  begin(argv)
  takeApart()
  fetch()
  local reply = answers()
  write()
  return reply
end
