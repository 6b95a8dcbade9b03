-- Decides a batch of admission operations in one call.
--
-- ARGV: 1 key prefix, 2 mode ('s' one Redis holds everything, 't' a tenant
-- shard of a cluster, 'p' the pool of a cluster), 3 outbox bound in records,
-- 4 retention of final records in ms, 5 number of templates, 6 number of
-- calendars; then the templates, the calendars and the operations.
--
-- A template is a list of constraints as text, a calendar the boundaries of
-- the tenant's day and month. Operations name both by index; an operation on a
-- known reservation takes the template from its record instead, so a changed
-- quota document never changes what is released.
--
-- Order of work: parse, read everything, decide each operation against the
-- state in memory, write everything. Keys are derived from the prefix; they
-- all lie in the slot of KEYS[1] when there is a cluster.
--
-- Reply: now in ms, one text an operation, then the states of the templates
-- that the operations name (see state() at the end).

local call, floor, ceil, max, min = redis.call, math.floor, math.ceil, math.max, math.min
local match, gmatch, format, find = string.match, string.gmatch, string.format, string.find
local concat = table.concat

-- int writes a whole number. '%d' is exact below 2^53 and much faster than
-- '%.0f'; numbers repeat within a batch (deadlines, slots), so texts are kept.
local ints = {}
local function int(n)
  local text = ints[n]
  if not text then
    text = format('%d', n)
    ints[n] = text
  end
  return text
end

local clock = call('TIME')
local nowUs = clock[1] * 1000000 + clock[2]
local now = floor(nowUs / 1000)
local nowText = int(now)

local prefix, mode = ARGV[1], ARGV[2]
local bound, retention = tonumber(ARGV[3]), ARGV[4]
local nTemplates, nCalendars = tonumber(ARGV[5]), tonumber(ARGV[6])
local single = mode == 's'

-- Seconds after which a hold or a lease is worth asking for again.
local SHORT_WAIT = 5000
-- A body hash that is not known, after a rebuild from the ledger.
local ANY_BODY = '00000000000000000000000000000000'
local UNITS, REQUESTS = 0, 9 -- metrics; 1 to 8 are the figures of a usage
local MAX_UNITS = 4503599627370496 -- 2^52: above, a double is not exact

-- Templates --------------------------------------------------------------

local templates = {}

local function template(text)
  local t = templates[text]
  if t then return t end
  t = {n = 0, periods = false, pool = ''}
  for kind, pool, field, metric, units, a, b, budget, layer in
      gmatch(text, '(%l),([01]),([^,;]*),(%d),(%d+),(%d+),(%d+),([01]),(%w*);') do
    local c = {
      kind = kind, pool = pool == '1', field = field, metric = tonumber(metric),
      units = tonumber(units), a = tonumber(a), b = tonumber(b), budget = budget == '1',
    }
    if kind == 'c' and c.a > 0 then t.periods = true end
    if c.pool and not single then
      t.pool = t.pool .. concat({kind, pool, field, metric, units, a, b, budget, layer}, ',') .. ';'
    end
    t.n = t.n + 1
    t[t.n] = c
  end
  templates[text] = t
  return t
end

-- Calendars: the start and the end (ms) of the period that now is in, for the
-- codes 1 (day) and 2 (month); ok is false when now is outside what was sent.
local calendars = {}
for i = 1, nCalendars do
  local d0, d1, d2, m0, m1, m2 = match(ARGV[6 + nTemplates + i], '^(%-?%d+),(%-?%d+),(%-?%d+),(%-?%d+),(%-?%d+),(%-?%d+)$')
  local s = floor(now / 1000)
  local function pick(first, second, third)
    first, second, third = tonumber(first), tonumber(second), tonumber(third)
    if s >= first and s < second then return {first, second * 1000} end
    if s >= second and s < third then return {second, third * 1000} end
    return nil
  end
  local day, month = pick(d0, d1, d2), pick(m0, m1, m2)
  calendars[i] = {ok = day ~= nil and month ~= nil, day, month}
end

local function inTime(t, cal)
  return not t.periods or (cal ~= nil and cal.ok)
end

-- State in memory --------------------------------------------------------

local shards, shardList = {}, {}

local function shardOf(number)
  local s = shards[number]
  if not s then
    local base = prefix .. '{s' .. number .. '}:'
    s = {base = base, meta = base .. 'meta', log = {}, n = 0, tenants = {}, fresh = {}}
    shards[number] = s
    shardList[#shardList + 1] = s
  end
  return s
end

local leases, leaseList = {}, {}

local function leaseAt(key)
  local o = leases[key]
  if not o then
    o = {key = key, lease = true, delta = 0, add = {}, rem = {}}
    leases[key] = o
    leaseList[#leaseList + 1] = o
  end
  return o
end

-- in use now: deadlines in the future, and what this batch changes.
local function inUse(o)
  if not o.n then o.n = call('ZCOUNT', o.key, '(' .. nowText, '+inf') end
  return o.n + o.delta
end

local function soonestEnd(o)
  if not o.soonest then
    local first = call('ZRANGEBYSCORE', o.key, '(' .. nowText, '+inf', 'WITHSCORES', 'LIMIT', 0, 1)
    o.soonest = first[2] and max(1, min(SHORT_WAIT, tonumber(first[2]) - now)) or SHORT_WAIT
  end
  return o.soonest
end

local tenantList = {}

local function tenantOf(number, id)
  local s = shardOf(number)
  local t = s.tenants[id]
  if not t then
    t = {
      id = id, shard = s, key = s.base .. 't:' .. id, fields = {'@'}, objects = {}, state = {},
      bound = {}, leases = s.base .. 'l:' .. id, records = s.base .. 'r:' .. id .. ':',
    }
    t.main = leaseAt(t.leases)
    s.tenants[id] = t
    tenantList[#tenantList + 1] = t
  end
  return t
end

-- bind lists the state object of each constraint of a template; false stands
-- for one that this server does not hold.
local function bind(t, text)
  local list = t.bound[text]
  if list then return list end
  local tpl = template(text)
  list = {tpl = tpl, tenant = t}
  for i = 1, tpl.n do
    local c = tpl[i]
    local o = false
    if c.kind == 'l' then
      if c.pool then
        if mode ~= 't' then o = leaseAt(prefix .. '{pool}:l:' .. c.field) end
      elseif c.field == 'leases' then
        o = t.main
      else
        o = leaseAt(t.leases .. ':' .. c.field)
      end
    else
      o = t.state[c.field]
      if not o then
        o = {field = c.field, kind = c.kind, a = c.a, b = c.b, tenant = t}
        t.state[c.field] = o
        t.fields[#t.fields + 1] = c.field
        t.objects[#t.objects + 1] = o
      end
    end
    list[i] = o
  end
  t.bound[text] = list
  return list
end

local function touch(o)
  o.text, o.dirty, o.tenant.dirty = nil, true, true
end

-- Rings ------------------------------------------------------------------

-- Older slots are hash fields '<field>#<number % slots>' with 'number:count';
-- a field with another number is one that left the window long ago. known and
-- closed are indexed from o.base, which keeps indexes small.
local function slots(o, from, to)
  local known, base, ask, numbers = o.known, o.base, {}, {}
  for number = from, to do
    if not known[number - base] then
      ask[#ask + 1] = o.field .. '#' .. int(number % o.b)
      numbers[#numbers + 1] = number
    end
  end
  if #ask > 0 then
    local values = call('HMGET', o.tenant.key, unpack(ask))
    for i = 1, #numbers do
      local number, count = match(values[i] or '', '^(%d+):(%d+)$')
      known[numbers[i] - base] = tonumber(number) == numbers[i] and tonumber(count) or 0
    end
  end
  return known
end

-- advance brings a ring to now: the newest slot is closed and the slots that
-- left the window are subtracted. A clock before the newest slot counts as it.
local function advance(o)
  local slot = floor(now / o.a)
  local gap = slot - o.head
  if gap <= 0 then return end
  if gap >= o.b then
    o.sum, o.base = 0, slot - o.b
  else
    local leaving, base = slots(o, o.head - o.b + 1, slot - o.b), o.base
    for number = o.head - o.b + 1, slot - o.b do
      o.sum = o.sum - leaving[number - base]
    end
    if o.sum < 0 then o.sum = 0 end
    for number = o.head + 1, slot - 1 do o.known[number - base] = 0 end
    o.known[o.head - base] = o.cur
    if o.cur > 0 then o.closed[o.head - base] = true end
  end
  o.head, o.cur, o.text = slot, 0, nil
end

-- take removes use that turned out not to be: from the newest slot backwards.
-- What has left the window already is not taken.
local function take(o, amount)
  local part = min(amount, o.cur)
  o.cur, o.sum, amount = o.cur - part, o.sum - part, amount - part
  local to, low = o.head - 1, o.head - o.b + 1
  while amount > 0 and to >= low do
    local from = max(low, to - 59)
    local known, base = slots(o, from, to), o.base
    for number = to, from, -1 do
      part = min(amount, known[number - base])
      if part > 0 then
        known[number - base], o.closed[number - base] = known[number - base] - part, true
        o.sum, amount = o.sum - part, amount - part
      end
    end
    to = from - 1
  end
end

-- ringWait is how long until at least need units have left the window.
local function ringWait(o, need)
  local left = 0
  local from = o.head - o.b + 1
  while from < o.head do
    local to = min(o.head - 1, from + 119)
    local known, base = slots(o, from, to), o.base
    for number = from, to do
      left = left + known[number - base]
      if left >= need then return max(1, (number + o.b) * o.a - now) end
    end
    from = to + 1
  end
  return max(1, (o.head + o.b) * o.a - now)
end

-- Preparing state: parse what was read, then bring it to now --------------

local function load(o, value)
  value = value or ''
  if o.kind == 'r' then
    local head, sum, held, cur = match(value, '^(%d+):(%d+):(%d+):(%d+)$')
    o.head = tonumber(head) or floor(now / o.a)
    o.sum, o.held, o.cur = tonumber(sum) or 0, tonumber(held) or 0, tonumber(cur) or 0
    o.known, o.closed, o.base = {}, {}, o.head - o.b
    advance(o)
  elseif o.kind == 'c' then
    local start, used, held = match(value, '^(%-?%d+):(%d+):(%d+)$')
    o.start, o.sum, o.held = tonumber(start), tonumber(used) or 0, tonumber(held) or 0
  else
    o.tat = tonumber(value) or 0
  end
end

-- roll starts a counter's new period. A stored start after the picked one (a
-- clock that ran back, a tenant that changed zones) stays.
local function roll(o, cal)
  if o.rolled then return end
  o.rolled = true
  if o.a == 0 then
    o.start = o.start or 0
    return
  end
  local period = cal[o.a]
  o.stop = period[2]
  if not o.start then
    o.start = period[1]
  elseif o.start < period[1] then
    o.start, o.sum, o.text = period[1], 0, nil
  end
end

local function prepare(list, cal)
  local tpl = list.tpl
  for i = 1, tpl.n do
    if tpl[i].kind == 'c' then roll(list[i], cal) end
  end
end

local function state(o)
  if not o then return '-' end
  if o.lease then return int(inUse(o)) end
  if o.text then return o.text end
  if o.kind == 'r' then
    o.text = format('%d:%d:%d:%d', o.head, o.sum, o.held, o.cur)
  elseif o.kind == 'c' then
    o.text = format('%d:%d:%d', o.start or 0, o.sum, o.held)
  else
    o.text = int(o.tat)
  end
  return o.text
end

-- Figures ----------------------------------------------------------------

local figures = {}

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

local function excessive(text, r)
  return unitsOf(parseUsage(text), tonumber(r.weight), tonumber(r.image)) > MAX_UNITS
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

-- Records ----------------------------------------------------------------

-- '1|state|seq|created|deadline|latest|body|hold|total|estimated|weight|image|template|request|key|endpoint|model'
local records, recordKeys, changed = {}, {}, {}

local function want(key)
  if records[key] == nil then
    records[key] = false
    recordKeys[#recordKeys + 1] = key
  end
end

local function parseRecord(text, key)
  local st, seq, created, deadline, latest, body, hold, total, estimated, weight, image, tpl, rest =
    match(text, '^1|(%l)|(%d+)|(%d+)|(%d+)|(%d+)|(%x+)|([%d,]+)|([%d,]+)|([01])|(%d+)|(%d+)|([^|]*)|(.*)$')
  if not st then return false end
  return {
    key = key, st = st, seq = tonumber(seq), created = created, deadline = tonumber(deadline), latest = tonumber(latest),
    body = body, hold = hold, total = total, estimated = estimated, weight = weight, image = image, tpl = tpl, rest = rest,
  }
end

local function recordText(r)
  return '1|' .. r.st .. '|' .. int(r.seq) .. '|' .. r.created .. '|' .. int(r.deadline) .. '|' ..
    int(r.latest) .. '|' .. r.body .. '|' .. r.hold .. '|' .. r.total .. '|' .. r.estimated .. '|' ..
    r.weight .. '|' .. r.image .. '|' .. r.tpl .. '|' .. r.rest
end

local function change(r)
  if not r.changed then
    r.changed = true
    changed[#changed + 1] = r
  end
end

-- emit notes an event; the outbox reader makes it whole. kind: r u s c x.
local function emit(kind, op, r, before, flag, author, reason)
  local s = op.tenant.shard
  s.n = s.n + 1
  s.log[s.n] = kind .. '|' .. int(r.seq) .. '|' .. op.tenant.id .. '|' .. op.hash .. '|' .. r.created .. '|' ..
    nowText .. '|' .. r.st .. '|' .. before .. '|' .. r.total .. '|' .. r.hold .. '|' .. r.weight .. '|' .. r.image .. '|' ..
    int(r.deadline) .. '|' .. flag .. '|' .. author .. '|' .. reason .. '|' .. r.rest
end

-- Refusals ---------------------------------------------------------------

-- Each gives: rank (3 a spent budget, 2 never, 1 wait), reason, wait in ms.
local function whyLease(o)
  return 1, 'c', soonestEnd(o)
end

local function whyCount(c, o, cost)
  local spent = o.sum + cost > c.units
  if cost <= c.units and not spent then
    return 1, 'h', soonestEnd(o.tenant.main)
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
      used, held, cost = inUse(o), 0, 1
      if used + 1 > c.units then rank, reason, wait = whyLease(o) end
    elseif c.kind == 'g' then
      local late = max(o.tat, nowUs) + c.a - c.b - nowUs
      if late > 0 then rank, reason, wait, used, held, cost = 1, 'r', ceil(late / 1000), c.units, 0, 1 end
    else
      cost = costOf(c, v, units)
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

local boundList = {}

local function boundIndex(list)
  if not list.index then
    boundList[#boundList + 1] = list
    list.index = #boundList
  end
  return list.index
end

local function addLease(o, member, deadline)
  local n = #o.add
  o.add[n + 1], o.add[n + 2] = int(deadline), member
end

local function takeLease(o, member, deadline)
  o.delta = o.delta + 1
  addLease(o, member, deadline)
end

local function dropLease(o, member, counted)
  if counted then o.delta = o.delta - 1 end
  o.rem[#o.rem + 1] = member
end

local function dropLeases(list, t, member, counted)
  dropLease(t.main, member, counted)
  for i = 1, list.tpl.n do
    local o = list[i]
    if o and o.lease and o ~= t.main then dropLease(o, member, counted) end
  end
end

-- move records use and what remains held, after r.total changed from before.
-- ended drops the whole hold.
local function move(list, r, before, ended)
  local old, new, hold = parseUsage(before), parseUsage(r.total), parseUsage(r.hold)
  local weight, image = tonumber(r.weight), tonumber(r.image)
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
          o.sum = o.sum + (is - was)
          if o.cur then o.cur = o.cur + (is - was) end
        elseif is < was and o.cur then
          take(o, was - is)
        elseif is < was then
          o.sum = max(0, o.sum - (was - is))
        end
        touch(o)
      end
    end
  end
end

local function reserve(op)
  local t = op.tenant
  local s, list = t.shard, op.list
  if not s.epoch then return 'E' end
  local r = records[op.key]
  if r then
    if r.st == 't' then return 'T' end
    if r.body ~= op.body and r.body ~= ANY_BODY then return 'M' end
    if inTime(list.tpl, op.cal) then prepare(list, op.cal) end
    return 'Y|' .. boundIndex(list) .. '|' .. recordText(r)
  end
  if s.added - s.trimmed >= bound then return 'B' end
  if not inTime(list.tpl, op.cal) then return 'K' end
  prepare(list, op.cal)

  local v = parseUsage(op.hold)
  local units = unitsOf(v, tonumber(op.weight), tonumber(op.image))
  local refusal = binding(list, v, units)
  if refusal then return 'F|' .. boundIndex(list) .. '|' .. refusal end
  if op.dry then return 'P|' .. boundIndex(list) end

  local deadline = now + min(op.ttl, op.life)
  for i = 1, list.tpl.n do
    local o, c = list[i], list.tpl[i]
    if not o then
      -- another server's
    elseif c.kind == 'l' then
      if o ~= t.main then takeLease(o, op.hash, deadline) end
    elseif c.kind == 'g' then
      o.tat = max(o.tat, nowUs) + c.a
      touch(o)
    else
      local cost = costOf(c, v, units)
      if cost > 0 then
        if c.metric == REQUESTS then
          o.sum = o.sum + 1
          if o.cur then o.cur = o.cur + 1 end
        else
          o.held = o.held + cost
        end
        touch(o)
      end
    end
  end
  -- Every hold is here, with or without a lease limit: it has a deadline.
  takeLease(t.main, op.hash, deadline)

  r = {
    changed = true, key = op.key, st = 'h', seq = 1, created = nowText, deadline = deadline, latest = now + op.life,
    body = op.body, hold = op.hold, total = '0,0,0,0,0,0,0,0', estimated = '0',
    weight = op.weight, image = op.image, tpl = op.tpl, rest = op.rest,
  }
  records[op.key] = r
  changed[#changed + 1] = r
  emit('r', op, r, r.total, '-', op.author, '')
  s.added = s.added + 1
  t.joined = true
  return 'A|' .. boundIndex(list) .. '|' .. nowText .. '|' .. int(deadline)
end

local function expire(op, r, list)
  r.st, r.seq = 'x', r.seq + 1
  dropLeases(list, op.tenant, op.hash, false)
  change(r)
  emit('x', op, r, r.total, '-', 'gateway', '')
  op.tenant.shard.added = op.tenant.shard.added + 1
end

local function answer(replayed, stop, list, r)
  return 'O|' .. replayed .. '|' .. stop .. '|' .. (list and list.tpl.pool or '') .. '|' .. recordText(r)
end

-- outgrown returns the constraint that a reservation beyond its hold does not
-- fit any more, as binding() does.
local function outgrown(list, r)
  local v, hold = parseUsage(r.total), parseUsage(r.hold)
  local weight, image = tonumber(r.weight), tonumber(r.image)
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

local function report(op, r, list)
  if r.st == 's' or r.st == 'c' then
    if larger(r.total, op.total) == r.total then return answer('1', '', nil, r) end
    return 'D|' .. recordText(r)
  end
  local before = r.total
  local total = larger(before, op.total)
  if excessive(total, r) then return 'V' end
  if r.st == 'h' and r.deadline <= now then expire(op, r, list) end
  local deadline = r.deadline
  if r.st == 'h' and op.ttl > 0 then deadline = max(deadline, min(now + op.ttl, r.latest)) end
  local stop = r.st == 'x' and 'e' or ''
  if total == before and deadline == r.deadline then
    if stop == '' then stop = outgrown(list, r) or '' end
    return answer('1', stop, list, r)
  end
  r.total, r.seq, r.estimated = total, r.seq + 1, op.estimated
  if total ~= before then move(list, r, before, false) end
  if deadline ~= r.deadline then
    r.deadline = deadline
    addLease(op.tenant.main, op.hash, deadline)
    for i = 1, list.tpl.n do
      local o = list[i]
      if o and o.lease and o ~= op.tenant.main then addLease(o, op.hash, deadline) end
    end
  end
  change(r)
  emit('u', op, r, before, op.estimated == '1' and 'e' or '-', op.author, op.reason)
  op.tenant.shard.added = op.tenant.shard.added + 1
  if stop == '' then stop = outgrown(list, r) or '' end
  return answer('0', stop, list, r)
end

local function finish(op, r, list)
  local final = op.kind == 'S' and 's' or 'c'
  if r.st == 's' or r.st == 'c' then
    if r.st == final and (op.sofar or r.total == op.total) then return answer('1', '', nil, r) end
    return 'D|' .. recordText(r)
  end
  if not op.sofar and excessive(op.total, r) then return 'V' end
  local before = r.total
  local counted = r.st == 'h' and r.deadline > now
  if not op.sofar then r.total, r.estimated = op.total, op.estimated end
  move(list, r, before, true)
  dropLeases(list, op.tenant, op.hash, counted)
  r.st, r.seq, r.tpl = final, r.seq + 1, ''
  change(r)
  emit(op.kind == 'S' and 's' or 'c', op, r, before, r.estimated == '1' and 'e' or '-', op.author, op.reason)
  op.tenant.shard.added = op.tenant.shard.added + 1
  return answer('0', '', list, r)
end

-- tombstone ends a request that was never reserved, so that it cannot be later.
local function tombstone(op)
  local r = {
    key = op.key, st = 't', seq = 1, created = nowText, deadline = now, latest = now, body = ANY_BODY,
    hold = '0,0,0,0,0,0,0,0', total = '0,0,0,0,0,0,0,0', estimated = '0', weight = '1000', image = '0',
    tpl = '', rest = op.request .. '|||',
  }
  records[op.key] = r
  change(r)
  emit('c', op, {
    seq = 1, created = r.created, st = 'c', total = r.total, hold = r.hold, weight = r.weight, image = r.image,
    deadline = now, rest = r.rest,
  }, r.total, 't', op.author, op.reason)
  op.tenant.shard.added = op.tenant.shard.added + 1
  return answer('0', '', nil, r)
end

local function later(op)
  if not op.tenant.shard.epoch then return 'E' end
  local r = records[op.key]
  if not r then
    if op.kind == 'C' and op.request ~= '' then return tombstone(op) end
    return 'N'
  end
  if op.created ~= '' and op.created ~= r.created then return 'N' end
  if r.st == 't' then
    if op.kind == 'C' then return answer('1', '', nil, r) end
    return 'T'
  end
  local list
  if r.st == 'h' or r.st == 'x' then
    list = op.tenant.bound[r.tpl]
    if not inTime(list.tpl, op.cal) then return 'K' end
    prepare(list, op.cal)
  end
  if op.kind == 'U' then return report(op, r, list) end
  return finish(op, r, list)
end

local function sweep(op)
  local r = records[op.key]
  if not op.tenant.shard.epoch then return 'E' end
  if not r or (r.st ~= 'h' and r.st ~= 'x') then
    dropLease(op.tenant.main, op.hash, false)
    return 'X|0'
  end
  if r.st == 'x' then
    dropLeases(op.tenant.bound[r.tpl], op.tenant, op.hash, false)
    return 'X|0'
  end
  if r.deadline > now then return 'X|0' end
  expire(op, r, op.tenant.bound[r.tpl])
  return 'X|1'
end

local function standing(op)
  if not inTime(op.list.tpl, op.cal) then return 'K' end
  prepare(op.list, op.cal)
  return 'P|' .. boundIndex(op.list)
end

-- Pool leases of a cluster: taken under the attempt's own name and a short
-- deadline (P), then kept under the reservation's (H, or J where it must be
-- there already), or given back (Z); L only looks.
local function pool(op)
  if op.kind == 'P' then
    local refusal = binding(op.list, nil, 0)
    if refusal then return 'F|' .. boundIndex(op.list) .. '|' .. refusal end
  end
  if op.kind == 'J' then
    for i = 1, op.list.tpl.n do
      local o = op.list[i]
      if not call('ZSCORE', o.key, op.hash) then
        return 'F|' .. boundIndex(op.list) .. '|' .. format('%d,c,%d,0,1,%d', i - 1, inUse(o), soonestEnd(o))
      end
    end
  end
  for i = 1, op.list.tpl.n do
    local o = op.list[i]
    if op.kind == 'L' then
      -- its state is in the reply
    elseif op.kind == 'P' then
      takeLease(o, op.member, now + op.ttl)
    elseif op.kind == 'H' or op.kind == 'J' then
      addLease(o, op.hash, op.deadline)
      if op.member ~= '' then o.rem[#o.rem + 1] = op.member end
    else
      o.rem[#o.rem + 1] = op.member
    end
  end
  return 'P|' .. boundIndex(op.list)
end

-- Parsing ----------------------------------------------------------------

local ops = {}

local function calendarAt(index) return calendars[tonumber(index)] end

-- Tables are made with all their fields at once: one that grows field by field
-- is rehashed again and again.
local function parseReserve(text)
  local dry, shard, tenant, hash, tpl, cal, ttl, life, body, hold, weight, image, author, rest =
    match(text, '^R|([01])|(%d+)|([^|]*)|(%w+)|(%d+)|(%d*)|(%d+)|(%d+)|(%x+)|([%d,]+)|(%d+)|(%d+)|([^|]*)|(.*)$')
  local t, list = tenantOf(shard, tenant), tpl == '0' and '' or ARGV[6 + tpl]
  return {
    kind = 'R', decide = reserve, tenant = t, hash = hash, key = t.records .. hash, tpl = list, list = bind(t, list),
    cal = calendarAt(cal), dry = dry == '1', ttl = tonumber(ttl), life = tonumber(life), body = body, hold = hold,
    weight = weight, image = image, author = author, rest = rest,
  }
end

local function parseLater(text, kind)
  local shard, tenant, hash, created, cal, ttl, total, estimated, sofar, author, reason, request =
    match(text, '^%u|(%d+)|([^|]*)|(%w+)|(%d*)|(%d*)|(%d+)|([%d,]+)|([01])|([01])|([^|]*)|([^|]*)|([^|]*)$')
  local t = tenantOf(shard, tenant)
  return {
    kind = kind, decide = later, tenant = t, hash = hash, key = t.records .. hash, created = created,
    cal = calendarAt(cal), ttl = tonumber(ttl), total = total, estimated = estimated, sofar = sofar == '1',
    author = author, reason = reason, request = request,
  }
end

local function parse(text)
  local kind = text:sub(1, 1)
  if kind == 'R' then return parseReserve(text) end
  if kind == 'U' or kind == 'S' or kind == 'C' then return parseLater(text, kind) end
  if kind == 'X' then
    local shard, tenant, hash = match(text, '^X|(%d+)|([^|]*)|(%w+)$')
    local t = tenantOf(shard, tenant)
    return {kind = kind, decide = sweep, tenant = t, hash = hash, key = t.records .. hash}
  end
  if kind == 'Q' then
    local shard, tenant, tpl, cal = match(text, '^Q|(%d+)|([^|]*)|(%d+)|(%d*)$')
    local t = tenantOf(shard, tenant)
    return {kind = kind, decide = standing, tenant = t, cal = calendarAt(cal), list = bind(t, ARGV[6 + tpl])}
  end
  local member, hash, ttl, deadline, tpl = match(text, '^%u|([^|]*)|([^|]*)|(%d+)|(%d+)|(%d+)$')
  local list = {tpl = template(ARGV[6 + tpl])}
  for i = 1, list.tpl.n do list[i] = leaseAt(prefix .. '{pool}:l:' .. list.tpl[i].field) end
  return {
    kind = kind, decide = pool, member = member, hash = hash, ttl = tonumber(ttl), deadline = tonumber(deadline), list = list,
  }
end

for i = 7 + nTemplates + nCalendars, #ARGV do
  local op = parse(ARGV[i])
  if op.key then want(op.key) end
  ops[#ops + 1] = op
end

-- Reading ----------------------------------------------------------------

if #recordKeys > 0 then
  local values = call('MGET', unpack(recordKeys))
  for i = 1, #recordKeys do
    if values[i] then records[recordKeys[i]] = parseRecord(values[i], recordKeys[i]) end
  end
end
for i = 1, #ops do
  local op = ops[i]
  local r = op.key and op.kind ~= 'R' and records[op.key]
  if r and (r.st == 'h' or r.st == 'x') then bind(op.tenant, r.tpl) end
end
for i = 1, #shardList do
  local s = shardList[i]
  local values = call('HMGET', s.meta, 'epoch', 'added', 'trimmed')
  s.epoch, s.added, s.trimmed = values[1], tonumber(values[2]) or 0, tonumber(values[3]) or 0
end
for i = 1, #tenantList do
  local t = tenantList[i]
  local values = call('HMGET', t.key, unpack(t.fields))
  t.known = values[1]
  for j = 1, #t.objects do load(t.objects[j], values[j + 1]) end
end

-- Deciding ---------------------------------------------------------------

local out = {nowText}
for i = 1, #ops do out[i + 1] = ops[i].decide(ops[i]) end

for i = 1, #boundList do
  local list, texts = boundList[i], {}
  for j = 1, list.tpl.n do texts[j] = state(list[j]) end
  out[#out + 1] = concat(texts, ';')
end

-- Writing ----------------------------------------------------------------

-- The first write is one that a full Redis refuses, so that a batch is written
-- whole or not at all.
for i = 1, #shardList do
  local s = shardList[i]
  if s.n > 0 then call('HSET', s.meta, 'added', int(s.added)) end
end
for i = 1, #tenantList do
  local t = tenantList[i]
  if t.dirty or (t.joined and not t.known) then
    local set = {}
    for j = 1, #t.objects do
      local o = t.objects[j]
      if o.dirty then
        set[#set + 1] = o.field
        set[#set + 1] = state(o)
        if o.closed then
          for index in pairs(o.closed) do
            set[#set + 1] = o.field .. '#' .. int((index + o.base) % o.b)
            set[#set + 1] = format('%d:%d', index + o.base, o.known[index])
          end
        end
      end
    end
    if t.joined and not t.known then
      set[#set + 1] = '@'
      set[#set + 1] = '1'
      call('SADD', t.shard.base .. 'tenants', t.id)
    end
    call('HSET', t.key, unpack(set))
  end
end
for i = 1, #leaseList do
  local o = leaseList[i]
  if #o.add > 0 then
    call('ZADD', o.key, unpack(o.add))
    if mode == 'p' then call('ZREMRANGEBYSCORE', o.key, '-inf', nowText) end
  end
  if #o.rem > 0 then call('ZREM', o.key, unpack(o.rem)) end
end
local open = {}
for i = 1, #changed do
  local r = changed[i]
  if r.st == 'h' or r.st == 'x' then
    open[#open + 1] = r.key
    open[#open + 1] = recordText(r)
  else
    call('SET', r.key, recordText(r), 'PX', retention)
  end
end
if #open > 0 then call('MSET', unpack(open)) end
for i = 1, #shardList do
  local s = shardList[i]
  if s.n > 0 then
    call('XADD', s.base .. 'outbox', '*', 'n', s.n, 'c', int(s.added), 'p', s.epoch, 'e', concat(s.log, '\n'))
  end
end
return out
