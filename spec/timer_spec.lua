-- Time: DESIGN 3, rulings 9, 17 to 19; SEMANTICS EV-04, TO; FIELD-REPORTS
-- theme G, R30, R53, R128.

local core = require "vigil.core"
local helper = require "spec.helper"
local vigil = require "vigil"

local spawn, sleep, suspend = vigil.spawn, vigil.sleep, vigil.suspend
local await, pawait, now = vigil.await, vigil.pawait, vigil.now

local function spec(name, fn)
  it(name, helper.in_vigil(fn))
end

local function burn(seconds)
  local stop = now() + seconds
  while now() < stop do end
end

-- How long fn takes.
local function time(fn, ...)
  local before = now()
  fn(...)
  return now() - before
end

local function assert_kind(kind, ok, err)
  assert.is_false(ok)
  assert.is_true(vigil.is_error(err, kind),
    kind .. " expected, got " .. tostring(err))
end

describe("never early (R66)", function()
  spec("2,000 sleeps of random length", function()
    local early, list = 0, {}
    for i = 1, 2000 do
      local s = math.random(500, 20000) / 1e6
      list[i] = spawn(function()
        if time(sleep, s) < s then early = early + 1 end
      end)
    end
    vigil.await_all_or_fail(list)
    assert.equal(0, early)
  end)

  spec("short sleeps one after another", function()
    for i = 1, 100 do
      local s = i / 100000
      assert.is_true(time(sleep, s) >= s)
    end
  end)

  spec("a sleep below one millisecond", function()
    assert.is_true(time(sleep, 0.0001) >= 0.0001)
  end)

  spec("timers", function()
    for _ = 1, 10 do
      local timer = vigil.timer(0.0033)
      local before = now()
      await(timer)
      assert.is_true(now() - before >= 0.0032)
    end
  end)

  spec("tokens", function()
    for _ = 1, 10 do
      assert.is_true(time(pawait, (vigil.future()), 0.0023) >= 0.0023)
    end
  end)

  spec("with_timeout", function()
    for _ = 1, 10 do
      assert.is_true(
        time(pcall, vigil.with_timeout, 0.0023, sleep, 10) >= 0.0023)
    end
  end)
end)

describe("after pure computation (R65)", function()
  spec("a sleep lasts its full time", function()
    burn(0.05)
    local took = time(sleep, 0.03)
    assert.is_true(took >= 0.03 and took < 0.06, took)
  end)

  spec("a timeout lasts its full time", function()
    burn(0.05)
    local took = time(pawait, (vigil.future()), vigil.timeout(0.03))
    assert.is_true(took >= 0.03 and took < 0.06, took)
  end)

  spec("with_timeout lasts its full time", function()
    burn(0.05)
    local took = time(pcall, vigil.with_timeout, 0.03, sleep, 10)
    assert.is_true(took >= 0.03 and took < 0.06, took)
  end)

  spec("a periodic timer starts from now", function()
    burn(0.05)
    local timer = vigil.timer(0.03, 1)
    local took = time(await, timer)
    assert.is_true(took >= 0.029 and took < 0.06, took)
  end)

  it("a sleep in the main chunk lasts its full time", function()
    burn(0.05)
    assert.is_true(time(sleep, 0.02) >= 0.02)
  end)
end)

describe("a sleep", function()
  spec("of 0 yields one turn (R66)", function()
    local turns = 0
    spawn(function()
      for _ = 1, 5 do
        turns = turns + 1
        suspend()
      end
    end)
    sleep(0)
    assert.equal(1, turns)
  end)

  spec("returns nothing", function()
    assert.equal(0, select("#", sleep(0.0001)))
  end)

  spec("takes an integer", function()
    local co = spawn(sleep, 1)
    suspend()
    assert.equal("suspended", co.state)
    co:cancel()
    pawait(co)
  end)

  for name, seconds in pairs { ["1e12"] = 1e12, ["1e300"] = 1e300,
    inf = math.huge } do
    spec("of " .. name .. " does not overflow (R70)", function()
      local co = spawn(sleep, seconds)
      sleep(0.002)
      assert.equal("suspended", co.state)
      co:cancel()
      pawait(co)
    end)
  end

  spec("does not use the processor (SC-10)", function()
    local before = os.clock()
    sleep(0.1)
    assert.is_true(os.clock() - before < 0.05)
  end)
end)

describe("a number of seconds (R70)", function()
  local calls = {
    ["sleep: seconds"] = sleep,
    ["timer: seconds"] = vigil.timer,
    ["timeout: seconds"] = vigil.timeout,
    ["with_timeout: seconds"] = function(s)
      vigil.with_timeout(s, function() end)
    end,
    ["await: timeout"] = function(s) await((vigil.future()), s) end,
    ["pawait: timeout"] = function(s) pawait((vigil.future()), s) end,
    ["timer: period"] = function(s) vigil.timer(1, s) end,
  }
  local bad = { ["-1"] = -1, ["NaN"] = 0 / 0, ["-inf"] = -math.huge,
    ["true"] = true, ["\"5\""] = "5", ["{}"] = {} }
  for call, fn in pairs(calls) do
    for name, value in pairs(bad) do
      spec(call .. " refuses " .. name, function()
        local ok, err = pcall(fn, value)
        assert.is_false(ok)
        assert.matches("bad argument", err)
        assert.matches(call:match ": (.*)", err, 1, true)
      end)
    end
  end

  spec("period refuses 0", function()
    local ok, err = pcall(vigil.timer, 1, 0)
    assert.is_false(ok)
    assert.matches("period", err)
  end)
end)

describe("a timer", function()
  spec("gives 1", function()
    assert.equal(1, await(vigil.timer(0.001)))
  end)

  spec("counts from its creation (ruling 17)", function()
    local timer = vigil.timer(0.02)
    sleep(0.015)
    assert.is_true(time(await, timer) < 0.015)
  end)

  spec("whose time passed while nobody waited is ready at once", function()
    local timer = vigil.timer(0.001)
    sleep(0.003)
    local ran = false
    spawn(function() ran = true end)
    assert.equal(1, await(timer))
    assert.is_false(ran)
  end)

  spec("that has fired stays fired (EV-09)", function()
    local timer = vigil.timer(0.001)
    assert.equal(1, await(timer))
    assert.equal(1, await(timer))
    assert.is_true(timer:is_closed())
  end)

  spec("wakes all its waiters", function()
    local timer = vigil.timer(0.002)
    local results = vigil.await_all { spawn(await, timer),
      spawn(await, timer), spawn(await, timer) }
    assert.same({ 1, 1, 1 }, results)
  end)

  spec("of 0 fires after a turn of the loop", function()
    assert.equal(1, await(vigil.timer(0)))
  end)

  spec("is armed only while somebody waits (ruling 17)", function()
    local before = core.counts()
    local timer = vigil.timer(3600)
    assert.equal(before.timers, core.counts().timers)
    local co = spawn(await, timer)
    suspend()
    assert.equal(before.timers + 1, core.counts().timers)
    co:cancel()
    pawait(co)
    assert.equal(before.timers, core.counts().timers)
    assert.equal(before.active, core.counts().active)
  end)

  spec("stays armed while one of two waiters is left (EV-01)", function()
    local timer = vigil.timer(0.005)
    local a, b = spawn(await, timer), spawn(await, timer)
    suspend()
    a:cancel()
    assert.equal(1, await(b))
    pawait(a)
  end)

  spec("is a line as a string (EV-12)", function()
    assert.matches("^timer %(in %d+%.%d+s%)$", tostring(vigil.timer(10)))
  end)

  spec("closed while someone waits fails the waiter", function()
    local timer = vigil.timer(10)
    local co = spawn(pawait, timer)
    suspend()
    timer:close()
    assert_kind("closed", await(co))
  end)

  spec("closed fails later waits", function()
    local timer = vigil.timer(10)
    timer:close()
    assert_kind("closed", pawait(timer))
  end)

  spec("closed twice is closed (R14)", function()
    local timer = vigil.timer(10)
    timer:close()
    timer:close()
    assert.is_true(timer:is_closed())
  end)

  spec("is closed at the end of its block (ruling 10)", function()
    local kept
    do
      local timer <close> = vigil.timer(10)
      kept = timer
    end
    assert.is_true(kept:is_closed())
  end)

  spec("is collected while nobody waits", function()
    local weak = setmetatable({}, { __mode = "k" })
    weak[vigil.timer(10)] = true
    collectgarbage()
    collectgarbage()
    assert.is_nil(next(weak))
  end)

  spec("is kept by who waits, with no other reference (GC-05)", function()
    local co = spawn(function() return await(vigil.timer(0.005)) end)
    suspend()
    collectgarbage()
    collectgarbage()
    assert.equal(1, await(co))
  end)
end)

describe("a periodic timer", function()
  spec("ticks again and again", function()
    local timer = vigil.timer(0.001, 0.002)
    local before = now()
    for _ = 1, 5 do assert.is_true(await(timer) >= 1) end
    assert.is_true(now() - before >= 0.008)
  end)

  spec("keeps its phase whatever its body takes (R67, ruling 17)", function()
    local start = now()
    local timer = vigil.timer(0.01, 0.01)
    local ticks = 0
    repeat
      ticks = ticks + await(timer)
      local late = now() - start - ticks * 0.01
      assert.is_true(late >= 0 and late < 0.009, late)
      burn(0.003)
    until ticks >= 15
  end)

  spec("says how many ticks passed, never in a burst (R67)", function()
    local timer = vigil.timer(0.005, 0.005)
    await(timer)
    sleep(0.022)
    local missed = await(timer)
    assert.is_true(missed >= 4 and missed < 20, missed)
    assert.is_true(time(await, timer) > 0.0001)
  end)

  spec("keeps counting while nobody waits", function()
    local timer = vigil.timer(0.002, 0.002)
    sleep(0.011)
    assert.is_true(await(timer) >= 5)
  end)

  spec("gives each of two waiters the tick", function()
    local timer = vigil.timer(0.002, 0.002)
    local a, b = spawn(await, timer), spawn(await, timer)
    assert.is_true(await(a) >= 1)
    assert.is_true(await(b) >= 1)
  end)

  spec("stops when it is closed, the body in progress goes on (R53)",
    function()
      local timer = vigil.timer(0.001, 0.001)
      local bodies, finished = 0, 0
      local co = spawn(function()
        while pawait(timer) do
          bodies = bodies + 1
          sleep(0.004)
          finished = finished + 1
        end
      end)
      sleep(0.003)
      timer:close()
      await(co)
      assert.equal(1, bodies)
      assert.equal(1, finished)
    end)

  spec("is not closed by its ticks (EV-04)", function()
    local timer = vigil.timer(0.001, 0.001)
    await(timer)
    assert.is_false(timer:is_closed())
  end)

  spec("with a period below the clock's step does not hang", function()
    local timer = vigil.timer(0, 1e-12)
    for _ = 1, 3 do assert.is_true(await(timer) >= 1) end
  end)

  spec("works as a case of select", function()
    local timer, n = vigil.timer(0.001, 0.001), 0
    for _ = 1, 3 do
      local index, ticks = vigil.select { timer, (vigil.future()) }
      assert.equal(1, index)
      n = n + ticks
    end
    assert.is_true(n >= 3)
  end)
end)

describe("a timeout token", function()
  spec("awaited by itself raises (TO-03)", function()
    assert_kind("timeout", pawait(vigil.timeout(0.001)))
  end)

  spec("ends an await with kind timeout and itself as token (TO-04)",
    function()
      local token = vigil.timeout(0.001)
      local ok, err = pawait((vigil.future()), token)
      assert_kind("timeout", ok, err)
      assert.equal("ETIMEDOUT", err.code)
      assert.equal(token, err.token)
    end)

  spec("is a deadline: two waits share its time (ruling 17)", function()
    local token = vigil.timeout(0.01)
    local before = now()
    for _ = 1, 3 do pawait((vigil.future()), token) end
    assert.is_true(now() - before < 0.05)
  end)

  spec("that has fired ends a wait at once (AW-02)", function()
    local token = vigil.timeout(0)
    sleep(0.002)
    local ran = false
    spawn(function() ran = true end)
    assert_kind("timeout", pawait((vigil.future()), token))
    assert.is_false(ran)
  end)

  spec("that has fired loses to a target that has settled", function()
    local token = vigil.timeout(0)
    local future, promise = vigil.future()
    promise:complete(5)
    sleep(0.002)
    assert.equal(5, await(future, token))
  end)

  spec("of 0 still polls once", function()
    local future, promise = vigil.future()
    spawn(function() promise:complete "in time" end)
    assert.equal("in time", await(future, 0))
  end)

  spec("as a number is the same (ruling 9)", function()
    assert_kind("timeout", pawait((vigil.future()), 0.001))
  end)

  spec("as a number given to a method returns nil, err (ruling 8)",
    function()
      local value, err = vigil.channel():recv(0.001)
      assert.is_nil(value)
      assert.equal("timeout", err.kind)
    end)

  spec("of math.huge never fires", function()
    local future, promise = vigil.future()
    spawn(function()
      sleep(0.002)
      promise:complete(1)
    end)
    assert.equal(1, await(future, math.huge))
  end)

  spec("leaves no timer when the target comes first (R128)", function()
    local before = core.counts().timers
    local future, promise = vigil.future()
    spawn(function() promise:complete(1) end)
    await(future, 3600)
    assert.equal(before, core.counts().timers)
  end)

  spec("cancelled is closed; cancel may be called again (TO-05)", function()
    local token = vigil.timeout(10)
    token:cancel()
    token:cancel()
    assert.is_true(token:is_closed())
  end)

  spec("serves several waits at once", function()
    local token = vigil.timeout(0.002)
    local list = {}
    for i = 1, 5 do
      list[i] = spawn(pawait, (vigil.future()), token)
    end
    for i = 1, 5 do assert_kind("timeout", await(list[i])) end
  end)
end)

describe("many timers", function()
  spec("20,000 set and left early leave none (R128)", function()
    local before = core.counts().timers
    for _ = 1, 20000 do vigil.with_timeout(3600, function() end) end
    assert.equal(before, core.counts().timers)
  end)

  spec("5,000 cancelled in random order leave the rest in order", function()
    local list, last, disorder = {}, 0, 0
    for i = 1, 5000 do
      local due = math.random() / 50
      list[i] = spawn(function()
        local at = now() + due
        sleep(due)
        if at < last - 0.004 then disorder = disorder + 1 end
        last = at
      end)
    end
    suspend()
    for i = #list, 2, -1 do
      local j = math.random(i)
      list[i], list[j] = list[j], list[i]
    end
    for i = 1, 4000 do list[i]:cancel() end
    vigil.await_all(list)
    assert.equal(0, disorder)
  end)

  it("a cancelled timeout as a token is a cancellation, not a timeout (TO-05)",
    helper.in_vigil(function()
      local token = vigil.timeout(5)
      token:cancel()
      local ok, err = vigil.pawait((vigil.future()), token)
      assert.is_false(ok)
      assert.is_true(vigil.is_error(err, "cancelled"), tostring(err))
    end))

  it("a timer that never fires says so", function()
    assert.equal("timer (never)", tostring(vigil.timer(math.huge)))
  end)
end)
