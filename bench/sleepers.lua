-- n coroutines asleep at the same time, for `seconds` and up to half a second
-- more each, out of order.  Reports, for one of them:
--
--   bytes  resident memory, from before the first to when all are asleep
--   lua    what of it Lua's collector knows of
--   cpu    microseconds of CPU to create it, put it to sleep and wake it

local support = dofile "bench/support.lua"
local contenders = {}

local count, asleep, awake, started, resident, known

local function begin(n)
  count, asleep, awake = n, 0, 0
  collectgarbage()
  resident = support.resident()
  known = collectgarbage "count" * 1024
  started = os.clock()
end

local function duration(i, seconds)
  return seconds + i * 7919 % 500 / 1000
end

-- To be called when all are asleep.
local function memory()
  local now = collectgarbage "count" * 1024
  assert(asleep == count and awake == 0,
    "not all asleep at once: give them more time, BENCH_SLEEP")
  support.report("bytes", (support.resident() - resident) / count)
  support.report("lua", (now - known) / count)
end

local function finish()
  assert(awake == count, "not all awake")
  support.report("cpu", (os.clock() - started) * 1e6 / count)
end

function contenders.vigil(n, seconds)
  local vigil = require "vigil"

  local function sleeper(i)
    asleep = asleep + 1
    vigil.sleep(duration(i, seconds))
    awake = awake + 1
  end

  begin(n)
  vigil.run(function()
    for i = 1, n do vigil.spawn(sleeper, i) end
    vigil.suspend()
    memory()
  end)
  finish()
end

-- The limit for the memory: a suspended coroutine, and somebody who knows it.
function contenders.plain(n)
  local yield = coroutine.yield
  local coroutines = {}

  local function sleeper()
    asleep = asleep + 1
    yield()
    awake = awake + 1
  end

  begin(n)
  for i = 1, n do
    coroutines[i] = coroutine.create(sleeper)
    coroutine.resume(coroutines[i])
  end
  memory()
end

function contenders.luv(n, seconds)
  local uv = require "luv"

  local function sleep(duration_s)
    local co = coroutine.running()
    local timer = uv.new_timer()
    timer:start(math.ceil(duration_s * 1000), 0, function()
      timer:close()
      assert(coroutine.resume(co))
    end)
    coroutine.yield()
  end

  local function sleeper(i)
    asleep = asleep + 1
    sleep(duration(i, seconds))
    awake = awake + 1
  end

  begin(n)
  for i = 1, n do coroutine.wrap(sleeper)(i) end
  memory()
  uv.run()
  finish()
end

function contenders.cqueues(n, seconds)
  local cqueues = require "cqueues"
  local controller = cqueues.new()

  local function sleeper(i)
    asleep = asleep + 1
    cqueues.sleep(duration(i, seconds))
    awake = awake + 1
  end

  begin(n)
  for i = 1, n do controller:wrap(sleeper, i) end
  assert(controller:step(0))
  memory()
  assert(controller:loop())
  finish()
end

support.run(contenders)
