-- Round trips: a value to another coroutine over one unbuffered channel, and
-- back over a second one.

local support = dofile "bench/support.lua"
local contenders = {}

function contenders.vigil(n)
  local vigil = require "vigil"
  local count = 0
  vigil.run(function()
    local ping, pong = vigil.channel(), vigil.channel()
    vigil.spawn(function()
      for value in ping do pong:send(value) end
    end)
    for i = 1, n do
      ping:send(i)
      if pong:recv() == i then count = count + 1 end
    end
    ping:close()
  end)
  return count
end

-- The limit: two plain coroutines, and a loop that hands what one yields
-- directly to the other.
function contenders.plain(n)
  local resume, yield = coroutine.resume, coroutine.yield
  local count = 0

  local client = coroutine.create(function()
    for i = 1, n do
      if yield(i) == i then count = count + 1 end
    end
  end)
  local server = coroutine.create(function()
    local value = yield()
    while true do value = yield(value) end
  end)

  resume(server)
  local _, value = resume(client)
  while value do
    _, value = resume(server, value)
    _, value = resume(client, value)
  end
  return count
end

-- cqueues has no channel: a slot with a condition variable.
function contenders.cqueues(n)
  local controller = require "cqueues".new()
  local condition = require "cqueues.condition"
  local count = 0

  local function mailbox()
    local filled, value = condition.new(), nil
    local function send(v)
      value = v
      filled:signal()
    end
    local function recv()
      while value == nil do filled:wait() end
      local v = value
      value = nil
      return v
    end
    return send, recv
  end

  local send_ping, recv_ping = mailbox()
  local send_pong, recv_pong = mailbox()
  controller:wrap(function()
    for _ = 1, n do send_pong(recv_ping()) end
  end)
  controller:wrap(function()
    for i = 1, n do
      send_ping(i)
      if recv_pong() == i then count = count + 1 end
    end
  end)
  assert(controller:loop())
  return count
end

support.measure(contenders)
