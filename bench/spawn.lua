-- Spawn and forget: n trivial coroutines, `alive` of them at a time.

local support = dofile "bench/support.lua"
local contenders = {}

local count

local function trivial()
  count = count + 1
end

function contenders.vigil(n, alive)
  local vigil = require "vigil"
  count = 0
  vigil.run(function()
    for _ = 1, n // alive do
      for _ = 1, alive do vigil.spawn(trivial) end
      vigil.suspend()
    end
  end)
  return count
end

-- The limit: what Lua itself needs to create a coroutine and run it, while
-- as many others are alive, suspended.
function contenders.plain(n, alive)
  local wrap, yield = coroutine.wrap, coroutine.yield
  local others = {}
  for i = 1, alive do
    others[i] = wrap(function() yield() end)
    others[i]()
  end
  count = 0
  for _ = 1, n do wrap(trivial)() end
  return count
end

-- The same with no other alive, all in one small piece of memory.
function contenders.plain_alone(n)
  return contenders.plain(n, 0)
end

-- The same as vigil does it: create them, and run them later.
function contenders.plain_later(n, alive)
  local wrap = coroutine.wrap
  local coroutines = {}
  count = 0
  for _ = 1, n // alive do
    for i = 1, alive do coroutines[i] = wrap(trivial) end
    for i = 1, alive do coroutines[i]() end
  end
  return count
end

-- Threads created once and run again and again by a loop in C.
function contenders.recycled(n, alive)
  local yardstick = require "yardstick"
  count = 0
  yardstick.spawn(trivial, n, alive)
  return count
end

function contenders.cqueues(n, alive)
  local controller = require "cqueues".new()
  count = 0
  for _ = 1, n // alive do
    for _ = 1, alive do controller:wrap(trivial) end
    assert(controller:loop())
  end
  return count
end

support.measure(contenders)
