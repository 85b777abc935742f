-- Two coroutines take turns, n turns in all.

local support = dofile "bench/support.lua"
local contenders = {}

function contenders.vigil(n)
  local vigil = require "vigil"
  local count = 0

  local function turns()
    local suspend = vigil.suspend
    for _ = 1, n // 2 do
      suspend()
      count = count + 1
    end
  end

  vigil.run(function()
    vigil.spawn(turns)
    turns()
  end)
  return count
end

-- The limit: resume and yield, without a scheduler.
function contenders.plain(n)
  local resume, yield = coroutine.resume, coroutine.yield
  local count = 0

  local function turns()
    while true do
      yield()
      count = count + 1
    end
  end

  local a, b = coroutine.create(turns), coroutine.create(turns)
  resume(a)
  resume(b)
  for _ = 1, n // 2 do
    resume(a)
    resume(b)
  end
  return count
end

-- The same pair, resumed by a loop in C.
function contenders.from_c(n)
  local yardstick = require "yardstick"
  local yield = coroutine.yield
  local count = 0

  yardstick.switch(function()
    while true do
      yield()
      count = count + 1
    end
  end, n)
  return count
end

function contenders.cqueues(n)
  local cqueues = require "cqueues"
  local controller = cqueues.new()
  local count = 0

  local function turns()
    local poll = cqueues.poll
    for _ = 1, n // 2 do
      poll()
      count = count + 1
    end
  end

  controller:wrap(turns)
  controller:wrap(turns)
  assert(controller:loop())
  return count
end

support.measure(contenders)
