-- Spawn `batch` coroutines, then await each; n in all.

local support = dofile "bench/support.lua"
local contenders = {}

local function task(value)
  return value
end

function contenders.vigil(n, batch)
  local vigil = require "vigil"
  local count = 0
  vigil.run(function()
    local spawned = {}
    for _ = 1, n // batch do
      for i = 1, batch do spawned[i] = vigil.spawn(task, 1) end
      for i = 1, batch do count = count + vigil.await(spawned[i]) end
    end
  end)
  return count
end

-- The limit: a scheduler in plain Lua, as small as one can be that lets its
-- coroutines yield and wait for each other.
function contenders.plain(n, batch)
  local create, resume, status = coroutine.create, coroutine.resume,
    coroutine.status
  local yield, running = coroutine.yield, coroutine.running
  local queue, arguments, first, last = {}, {}, 1, 0
  local result, waiter = {}, {} -- by coroutine

  local function ready(co, value)
    last = last + 1
    queue[last], arguments[last] = co, value
  end

  local function spawn(fn, value)
    local co = create(fn)
    ready(co, value)
    return co
  end

  local function await(co)
    if result[co] == nil then
      waiter[co] = running()
      yield()
    end
    local value = result[co]
    result[co] = nil
    return value
  end

  local function step()
    local co, argument = queue[first], arguments[first]
    queue[first], arguments[first] = nil, nil
    first = first + 1
    local ok, value = resume(co, argument)
    if not ok then error(value) end
    if status(co) == "dead" then
      result[co] = value
      local waiting = waiter[co]
      if waiting then
        waiter[co] = nil
        ready(waiting)
      end
    end
  end

  local count = 0
  spawn(function()
    local spawned = {}
    for _ = 1, n // batch do
      for i = 1, batch do spawned[i] = spawn(task, 1) end
      for i = 1, batch do count = count + await(spawned[i]) end
    end
    return count
  end)
  while first <= last do step() end
  return count
end

-- No scheduler at all: create a batch, run it, collect.  Nothing in it could
-- wait; shown to say what the scheduler costs.
function contenders.bare(n, batch)
  local create, resume = coroutine.create, coroutine.resume
  local count, spawned, results = 0, {}, {}
  for _ = 1, n // batch do
    for i = 1, batch do spawned[i] = create(task) end
    for i = 1, batch do
      local ok, value = resume(spawned[i], 1)
      results[i] = ok and value
    end
    for i = 1, batch do count = count + results[i] end
  end
  return count
end

support.measure(contenders)
