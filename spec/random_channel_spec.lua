-- Random programs over channels, checked against what must hold for each:
-- every value that was sent is received once or still in the channel, in the
-- order of each sender; nobody waits for what is there.  DESIGN 2.7, 5.25;
-- SEMANTICS CH; FIELD-REPORTS R56, R63.

local helper = require "spec.helper"
local vigil = require "vigil"

local spawn, suspend = vigil.spawn, vigil.suspend

-- A generator of our own: the same numbers on every machine.
local function generator(seed)
  local state = seed
  return function(n)
    state = (state * 6364136223846793005 + 1442695040888963407)
    return (state >> 33) % n + 1
  end
end

local function fail(text, ...)
  error(text:format(...), 0)
end

-- What tostring says: values held, receivers and senders that wait, slots
-- promised.
local function look(ch)
  local held, receiving, sending, promised = tostring(ch):match(
    "%((%d+) of %d+, (%d+) receiving, (%d+) sending, (%d+) promised")
  return tonumber(held), tonumber(receiving), tonumber(sending),
    tonumber(promised)
end

-- No waiter may be there when it could be served.
local function check_nobody_forgotten(program)
  for i, ch in ipairs(program.channels) do
    local held, receiving, sending, promised = look(ch)
    if held ~= #ch then fail("channel %d: # says %d, holds %d", i, #ch, held)
    end
    if receiving > 0 and held > 0 then
      fail("channel %d: %d receivers wait, %d values are there", i, receiving,
        held)
    end
    if receiving > 0 and promised > 0 then
      fail("channel %d: receivers wait beside promised senders", i)
    end
    if sending > 0 and held + promised < ch.capacity then
      fail("channel %d: %d senders wait, %d of %d slots used", i, sending,
        held + promised, ch.capacity)
    end
    if ch:is_closed() and receiving + sending > 0 then
      fail("channel %d: somebody waits in a closed channel", i)
    end
    -- One coroutine in one select may be both; two that could meet may not.
    if receiving > 0 and sending > 0 and program.plain then
      fail("channel %d: receivers and senders wait", i)
    end
  end
end

-- The value number n of sender s on channel c.
local function new_value(program, s, c)
  program.numbers[s] = (program.numbers[s] or 0) + 1
  local value = { sender = s, number = program.numbers[s], channel = c }
  program.offered[value] = true
  return value
end

local function sent(program, value)
  value.sent = true
  program.sent = program.sent + 1
end

-- What one receiver takes of one sender comes in order.  Between receivers
-- there is none to see: one that was handed a value may run after one that
-- found the next.  And a value that comes back from a cancelled receiver may
-- come after later ones: so this holds in programs that cancel nobody.
local function received(program, value, c, by)
  if not program.offered[value] then
    fail("channel %d: received what nobody sent", c)
  end
  if value.channel ~= c then
    fail("received from channel %d what went to %d", c, value.channel)
  end
  if value.received then
    fail("channel %d: value %d of sender %d received twice", c, value.number,
      value.sender)
  end
  value.received = true
  local key = (by * 16 + value.sender) * 4 + c
  local last = program.last[key] or 0
  if program.calm and value.number <= last then
    fail("channel %d: sender %d's value %d after its %d", c, value.sender,
      value.number, last)
  end
  program.last[key] = value.number
end

local function check_result(value, err)
  if value == nil and not (vigil.is_error(err, "closed")
    or vigil.is_error(err, "timeout")) then
    fail("unexpected: %s", tostring(err))
  end
end

local actions = {}

function actions.send(program, self, c, ch)
  local value = new_value(program, self, c)
  local ok, err = ch:send(value)
  check_result(ok, err)
  if ok then sent(program, value) end
end

function actions.send_within(program, self, c, ch)
  local value = new_value(program, self, c)
  local ok, err = ch:send(value, program.random(3) == 1 and 0 or 0.0001)
  check_result(ok, err)
  if ok then sent(program, value) end
end

function actions.try_send(program, self, c, ch)
  local value = new_value(program, self, c)
  local ok, err = ch:try_send(value)
  if ok == nil then check_result(ok, err) end
  if ok then sent(program, value) end
end

function actions.recv(program, self, c, ch)
  local value, err = ch:recv()
  check_result(value, err)
  if value then received(program, value, c, self) end
end

function actions.recv_within(program, self, c, ch)
  local value, err = ch:recv(program.random(3) == 1 and 0 or 0.0001)
  check_result(value, err)
  if value then received(program, value, c, self) end
end

function actions.try_recv(program, self, c, ch)
  local value, err = ch:try_recv()
  if err ~= nil then check_result(value, err) end
  if value then received(program, value, c, self) end
end

function actions.suspend()
  suspend()
end

function actions.select(program, self)
  local cases, what = {}, {}
  for i = 1, program.random(4) do
    local c = program.random(#program.channels)
    local ch = program.channels[c]
    if program.random(2) == 1 then
      cases[i], what[i] = ch:receiving(), { channel = c }
    else
      local value = new_value(program, self, c)
      cases[i], what[i] = ch:sending(value), { channel = c, value = value }
    end
  end
  local kind = program.random(4)
  if kind == 1 then cases.default = true end
  if kind == 2 then
    cases[#cases + 1] = vigil.timeout(0.0001)
    what[#cases] = { timeout = true }
  end
  local index, value, err = vigil.select(cases)
  if index == nil then
    if kind ~= 1 then fail "select took a default that is not there" end
    return
  end
  local case = what[index]
  if case.timeout then
    if not vigil.is_error(err, "timeout") then fail "no timeout" end
  elseif value == nil then
    if not vigil.is_error(err, "closed") then
      fail("unexpected: %s", tostring(err))
    end
  elseif case.value then
    if value ~= true then fail "sending gave no true" end
    sent(program, case.value)
  else
    received(program, value, case.channel, self)
  end
end

function actions.cancel(program)
  local victim = program.coroutines[program.random(#program.coroutines)]
  if victim ~= vigil.current() then victim:cancel() end
end

function actions.close(program, _, _, ch)
  if program.random(4) == 1 then ch:close() end
end

local names = {
  "send", "send", "send", "recv", "recv", "recv", "send_within",
  "recv_within", "try_send", "try_recv", "suspend", "select", "select",
  "cancel", "close",
}

-- One coroutine's life: a few actions.  `doing` is for the report.
local function live(program, self, steps)
  for _ = 1, steps do
    local name = names[program.random(#names)]
    if program.plain and name == "select" then name = "send" end
    if program.calm and name == "cancel" then name = "recv" end
    local c = program.random(#program.channels)
    actions[name](program, self, c, program.channels[c])
  end
end

-- After the end of all, what was sent and not received is in the channels, in
-- the order of each sender.
local function check_rest(program)
  for c, ch in ipairs(program.channels) do
    while true do
      local value = ch:try_recv()
      if value == nil then break end
      received(program, value, c, 0)
    end
  end
  for value in pairs(program.offered) do
    if value.sent and not value.received then
      fail("value %d of sender %d was sent on channel %d and lost",
        value.number, value.sender, value.channel)
    end
    -- Taken from a sender that was cancelled before it ran (CH-13).
    if value.received and not value.sent
      and not program.cancelled[value.sender] then
      fail("value %d of sender %d was received, but its send failed",
        value.number, value.sender)
    end
  end
end

local function run_program(seed)
  local random = generator(seed)
  local program = {
    random = random, channels = {}, coroutines = {}, numbers = {},
    offered = {}, last = {}, cancelled = {}, sent = 0,
    plain = random(3) == 1, calm = random(2) == 1,
  }
  for i = 1, random(3) do
    program.channels[i] = vigil.channel(random(4) - 1)
  end
  local count = 2 + random(5)
  for i = 1, count do
    program.coroutines[i] = spawn(function()
      live(program, i, random(6))
    end)
  end
  -- Let them go as far as they can, looking at each turn.
  for _ = 1, 12 do
    suspend()
    check_nobody_forgotten(program)
  end
  -- Then end everybody: by closing, or one by one.
  if not program.calm then
    for _ = 1, 3 do
      program.coroutines[random(count)]:cancel()
      check_nobody_forgotten(program)
      if random(2) == 1 then suspend() end
    end
  end
  for _, ch in ipairs(program.channels) do
    if program.calm or random(2) == 1 then ch:close() end
  end
  for i, co in ipairs(program.coroutines) do
    if not program.calm then co:cancel() end
    local ok, err = vigil.pawait(co)
    if not ok and not vigil.is_error(err, "cancelled") then error(err, 0) end
    program.cancelled[i] = not ok
  end
  check_nobody_forgotten(program)
  for i, ch in ipairs(program.channels) do
    local _, receiving, sending, promised = look(ch)
    if receiving + sending + promised > 0 then
      fail("channel %d: waiters are left: %s", i, tostring(ch))
    end
  end
  check_rest(program)
  return program.sent
end

describe("random programs over channels", function()
  -- 8 times 250; VIGIL_SEED runs one again.
  local base = tonumber(os.getenv "VIGIL_SEED")
  local total = 0

  for part = 1, 8 do
    it("lose nothing, double nothing, keep the order, part " .. part ..
      " (CH-01 to CH-18, R56, R63)", helper.in_vigil(function()
        for i = 1, base and 1 or 250 do
          local seed = base or part * 100000 + i
          local ok, result = pcall(run_program, seed)
          if not ok then
            error(("seed %d: %s"):format(seed, tostring(result)), 0)
          end
          total = total + result
        end
      end))
  end

  it("do send (or the others would check nothing)", function()
    assert.is_true(base ~= nil or total > 2000, "sent: " .. total)
  end)
end)
