-- The coroutine as an object: DESIGN 3, rulings 10 to 14; SEMANTICS CO;
-- FIELD-REPORTS R19, R27, R39.

local helper = require "spec.helper"
local vigil = require "vigil"

local spawn, sleep, suspend = vigil.spawn, vigil.sleep, vigil.suspend
local await, pawait = vigil.await, vigil.pawait

local function spec(name, fn)
  it(name, helper.in_vigil(fn))
end

local function started(fn, ...)
  local co = spawn(fn, ...)
  suspend()
  return co
end

local function here(offset)
  local info = debug.getinfo(2, "Sl")
  return info.short_src .. ":" .. info.currentline + (offset or 0)
end

describe("state", function()
  spec("is queued before the start (CO-01)", function()
    local co = spawn(function() end)
    assert.equal("queued", co.state)
    await(co)
  end)

  spec("is running inside (CO-01)", function()
    local state
    await(spawn(function() state = vigil.current().state end))
    assert.equal("running", state)
  end)

  spec("is suspended while it waits (CO-01)", function()
    local co = started(sleep, 0.001)
    assert.equal("suspended", co.state)
    await(co)
  end)

  spec("is queued once it is woken", function()
    local future, promise = vigil.future()
    local co = started(await, future)
    promise:complete()
    assert.equal("queued", co.state)
    await(co)
  end)

  spec("is completed after a return (CO-01, CO-02)", function()
    local co = spawn(function() suspend() end)
    await(co)
    assert.equal("completed", co.state)
  end)

  spec("is failed after an error (ruling 12)", function()
    local co = spawn(error, "bad")
    pawait(co)
    assert.equal("failed", co.state)
  end)

  spec("is cancelled only after the end (CO-04)", function()
    local co = started(sleep, 10)
    co:cancel()
    assert.equal("queued", co.state)
    pawait(co)
    assert.equal("cancelled", co.state)
  end)

  spec("is the same for all who look (R39)", function()
    local co = started(function()
      pcall(sleep, 10)
      return 7
    end)
    local seen
    co:finally(function(ended) seen = ended.state end)
    co:cancel()
    assert.equal(7, await(co))
    assert.equal(7, await(co))
    assert.equal("completed", co.state)
    suspend()
    assert.equal("completed", seen)
  end)
end)

describe("fields", function()
  spec("id is a number of its own", function()
    local a, b = spawn(suspend), spawn(suspend)
    assert.is_number(a.id)
    assert.not_equal(a.id, b.id)
    vigil.await_all { a, b }
  end)

  spec("result and error are nil while it is unfinished (CO-03)", function()
    local co = started(sleep, 0.001)
    assert.is_nil(co.result)
    assert.is_nil(co.error)
    await(co)
  end)

  spec("result is the first value returned", function()
    local co = spawn(function() return 1, 2 end)
    await(co)
    assert.equal(1, co.result)
    assert.is_nil(co.error)
  end)

  spec("result of a body that returns nothing is nil, state completed "
    .. "(CO-05)", function()
    local co = spawn(function() end)
    assert.is_nil((await(co)))
    assert.is_nil(co.result)
    assert.equal("completed", co.state)
  end)

  spec("result false and error false are kept apart", function()
    local a = spawn(function() return false end)
    local b = spawn(error, false)
    vigil.await_all { a, b }
    assert.is_false(a.result)
    assert.is_nil(a.error)
    assert.is_nil(b.result)
    assert.is_false(b.error)
  end)

  spec("error is what was raised", function()
    local value = {}
    local co = spawn(error, value)
    pawait(co)
    assert.equal(value, co.error)
    assert.is_nil(co.result)
  end)

  spec("name is nil until it is set, and can be reset", function()
    local co = spawn(suspend)
    assert.is_nil(co.name)
    co.name = "worker"
    assert.equal("worker", co.name)
    co.name = nil
    assert.is_nil(co.name)
    await(co)
  end)

  spec("name stays after the end", function()
    local co = spawn(suspend)
    co.name = "worker"
    await(co)
    assert.equal("worker", co.name)
  end)

  spec("name must be a string", function()
    local co = spawn(suspend)
    assert.is_false((pcall(function() co.name = {} end)))
    await(co)
  end)

  spec("no other field can be set, and the error names it", function()
    local co = spawn(suspend)
    local ok, err = pcall(function() co.state = "running" end)
    assert.is_false(ok)
    assert.matches("state", err)
    await(co)
  end)

  spec("an unknown field is nil", function()
    assert.is_nil(vigil.current().no_such_field)
  end)

  spec("spawned_at is where spawn was called (CO-14)", function()
    local co = spawn(suspend)
    local place = here(-1)
    assert.equal(place, co.spawned_at)
    await(co)
    assert.equal(place, co.spawned_at)
  end)

  spec("suspended_at is nil before the first wait and after the end (CO-14)",
    function()
      local co = spawn(suspend)
      assert.is_nil(co.suspended_at)
      await(co)
      assert.is_nil(co.suspended_at)
    end)

  spec("suspended_at is where it waits (CO-14)", function()
    local place
    local co = started(function()
      place = here(1)
      sleep(0.001)
    end)
    assert.equal(place, co.suspended_at)
    await(co)
  end)

  spec("suspended_at sees through generators (R35)", function()
    local place
    local co = started(function()
      vigil.coroutine.wrap(function()
        place = here(1)
        sleep(0.001)
      end)()
    end)
    assert.equal(place, co.suspended_at)
    await(co)
  end)

  spec("positions of chunks loaded from a string are their text's",
    function()
      local fn = load([[local vigil = ...
        return vigil.spawn(vigil.suspend)]], "=chunk")
      local co = fn(vigil)
      assert.equal("chunk:2", co.spawned_at)
      await(co)
    end)

  spec("positions outlive the function they point into", function()
    local co = load("return (...).spawn(function() end)", "=short-lived")(
      vigil)
    await(co)
    collectgarbage()
    collectgarbage()
    assert.equal("short-lived:1", co.spawned_at)
  end)
end)

describe("tostring", function()
  spec("names id, state and spawn place (EV-12)", function()
    local co = spawn(suspend)
    local text = tostring(co)
    assert.matches("coroutine #" .. co.id, text, 1, true)
    assert.matches("queued", text, 1, true)
    assert.matches(co.spawned_at, text, 1, true)
    await(co)
  end)

  spec("names the name", function()
    local co = spawn(suspend)
    co.name = "worker"
    assert.matches("'worker'", tostring(co), 1, true)
    await(co)
  end)

  spec("of a waiting one says where and for what (EV-12)", function()
    local ch = vigil.channel()
    local co = started(function() return ch:recv() end)
    local text = tostring(co)
    assert.matches(co.suspended_at, text, 1, true)
    assert.matches("channel", text, 1, true)
    ch:send(1)
    await(co)
  end)

  spec("is one line", function()
    local co = spawn(error, "a\nb")
    co.name = "x"
    pawait(co)
    assert.is_nil(tostring(co):find("\n", 1, true))
  end)

  spec("survives a very long name", function()
    local co = spawn(suspend)
    co.name = ("n"):rep(5000)
    assert.matches("^coroutine #%d+ 'nnnn", tostring(co))
    await(co)
  end)
end)

describe("awaiting", function()
  spec("is empty unless it waits", function()
    local co = spawn(suspend)
    assert.same({}, co:awaiting())
    await(co)
    assert.same({}, co:awaiting())
  end)

  spec("lists each event by its info", function()
    local ch = vigil.channel()
    local future = vigil.future()
    local co = started(function()
      vigil.select { ch:receiving(), future }
    end)
    local list = co:awaiting()
    assert.equal(2, #list)
    assert.matches("^channel", list[1])
    assert.matches("^future", list[2])
    ch:send(1)
    await(co)
  end)

  spec("lists a sleep and a timeout", function()
    local a = started(sleep, 0.001)
    local b = started(function() pawait(vigil.future(), 0.001) end)
    assert.matches("sleep", a:awaiting()[1])
    local list = b:awaiting()
    assert.matches("^future", list[1])
    assert.matches("timeout", list[2])
    vigil.await_all { a, b }
  end)

  spec("names the awaited coroutine", function()
    local child = spawn(sleep, 0.001)
    local co = started(await, child)
    assert.matches("coroutine #" .. child.id, co:awaiting()[1], 1, true)
    await(co)
  end)
end)

describe("traceback", function()
  spec("is nil before the start (CO-14)", function()
    local co = spawn(suspend)
    assert.is_nil(co:traceback())
    await(co)
  end)

  spec("shows the frames of a suspended one (CO-14)", function()
    local function inner_frame() sleep(0.001) end
    local function outer_frame() inner_frame() end
    local co = started(function() outer_frame() end)
    local text = co:traceback()
    assert.matches("inner_frame", text)
    assert.matches("outer_frame", text)
    await(co)
  end)

  spec("of a failed one shows where it failed (R20)", function()
    local function deep_frame() error("bad") end
    local co = spawn(function()
      sleep(0.001)
      deep_frame()
    end)
    pawait(co)
    assert.matches("deep_frame", co:traceback())
  end)

  spec("of a completed one is nil", function()
    local co = spawn(suspend)
    await(co)
    assert.is_nil(co:traceback())
  end)
end)

describe("finally", function()
  spec("handlers get the ended coroutine", function()
    local seen, state
    local co = spawn(function() return 1 end)
    co:finally(function(ended)
      seen, state = ended, ended.state
    end)
    await(co)
    suspend()
    assert.equal(co, seen)
    assert.equal("completed", state)
  end)

  spec("returns the coroutine, for chaining", function()
    local co = spawn(suspend)
    assert.equal(co, co:finally(function() end))
    await(co)
  end)

  spec("handlers run in the order in which they were added (CO-08)",
    function()
      local order = {}
      local co = spawn(function() end)
      for i = 1, 3 do co:finally(function() order[i] = #order + 1 end) end
      await(co)
      suspend()
      assert.same({ 1, 2, 3 }, order)
    end)

  spec("starts before woken awaiters resume (ruling 13)", function()
    local order = {}
    local co = spawn(function() suspend() end)
    co:finally(function() order[#order + 1] = "finally" end)
    local waiter = spawn(function()
      await(co)
      order[#order + 1] = "awaiter"
    end)
    await(waiter)
    assert.same({ "finally", "awaiter" }, order)
  end)

  spec("is not waited for by awaiters (ruling 13)", function()
    local done = false
    local co = spawn(function() end)
    co:finally(function()
      sleep(0.002)
      done = true
    end)
    await(co)
    assert.is_false(done)
    sleep(0.01)
    assert.is_true(done)
  end)

  it("is waited for by the run (ruling 13)", function()
    local done = false
    vigil.run(function()
      spawn(function() end):finally(function()
        sleep(0.002)
        done = true
      end)
    end)
    assert.is_true(done)
  end)

  spec("of a cancelled coroutine may wait (ruling 13)", function()
    local done
    local co = started(sleep, 10)
    co:finally(function()
      done = false
      sleep(0.001)
      done = true
    end)
    co:cancel()
    pawait(co)
    sleep(0.01)
    assert.is_true(done)
  end)

  spec("runs after a failure as well", function()
    local state
    local co = spawn(error, "bad")
    co:finally(function(ended) state = ended.state end)
    pawait(co)
    suspend()
    assert.equal("failed", state)
  end)

  spec("added after the end runs on the next tick (CO-07, ruling 13)",
    function()
      local seen
      local co = spawn(function() end)
      await(co)
      co:finally(function(ended) seen = ended end)
      assert.is_nil(seen)
      suspend()
      assert.equal(co, seen)
    end)

  it("all handlers run although one fails (CO-08, R19)", function()
    local second = false
    local ok, err = pcall(vigil.run, function()
      spawn(function() end)
        :finally(function() error("first", 0) end)
        :finally(function() second = true end)
    end)
    assert.is_false(ok)
    assert.equal("first", err)
    assert.is_true(second)
  end)

  it("several failures surface as one composite, in order (CO-08)",
    function()
      local ok, err = pcall(vigil.run, function()
        spawn(function() end)
          :finally(function() error("first", 0) end)
          :finally(function() error("second", 0) end)
      end)
      assert.is_false(ok)
      assert.is_true(vigil.is_error(err, "composite"))
      assert.same({ "first", "second" }, err.errors)
    end)

  it("its failure is told apart from the body's (CO-09)", function()
    local told = {}
    vigil.on_unhandled(function(err) told[#told + 1] = err end)
    pcall(vigil.run, function()
      spawn(error, "body"):finally(function() error("handler", 0) end)
    end)
    vigil.on_unhandled(nil)
    assert.same({ "body", "handler" }, told)
  end)

  spec("refuses what is not a function", function()
    local co = spawn(suspend)
    assert.is_false((pcall(co.finally, co, 5)))
    await(co)
  end)
end)

describe("close", function()
  spec("at the end of a block cancels and waits (ruling 10)", function()
    local co
    do
      local c <close> = started(function()
        local ok = pcall(sleep, 10)
        if not ok then vigil.protect(function() sleep(0.002) end) end
      end)
      co = c
    end
    assert.not_equal("suspended", co.state)
    assert.not_equal("queued", co.state)
  end)

  spec("of an ended one does nothing", function()
    do
      local c <close> = spawn(function() end)
      await(c)
    end
    assert.equal("running", vigil.current().state)
  end)

  spec("of one that was cancelled raises nothing", function()
    local co
    do
      local c <close> = started(sleep, 10)
      co = c
    end
    assert.equal("cancelled", co.state)
  end)

  spec("while an error unwinds waits as well (ruling 1)", function()
    local co
    local ok, err = pcall(function()
      local c <close> = started(sleep, 10)
      co = c
      error("bad", 0)
    end)
    assert.is_false(ok)
    assert.equal("bad", err)
    assert.equal("cancelled", co.state)
  end)

  spec("may wait in __close while the body's error unwinds (ruling 1)",
    function()
      local closed = false
      local co = spawn(function()
        local _ <close> = setmetatable({}, { __close = function()
          sleep(0.001)
          closed = true
        end })
        error("bad", 0)
      end)
      local ok, err = pawait(co)
      assert.is_false(ok)
      assert.equal("bad", err)
      assert.is_true(closed)
    end)
end)

describe("recycling (ruling 14)", function()
  local function thread_of()
    return coroutine.running()
  end

  spec("uses the thread of an ended coroutine again", function()
    local seen = {}
    for i = 1, 50 do
      await(spawn(function() seen[coroutine.running()] = i end))
    end
    local n = 0
    for _ in pairs(seen) do n = n + 1 end
    assert.is_true(n < 10, n .. " threads")
  end)

  spec("vigil.current() is never the same for two coroutines", function()
    local seen = {}
    for i = 1, 50 do
      await(spawn(function() seen[vigil.current()] = i end))
    end
    local n = 0
    for _ in pairs(seen) do n = n + 1 end
    assert.equal(50, n)
  end)

  spec("a thread got from vigil.coroutine.running is not used again",
    function()
      local seen = {}
      for i = 1, 20 do
        await(spawn(function() seen[vigil.coroutine.running()] = i end))
      end
      local n = 0
      for _ in pairs(seen) do n = n + 1 end
      assert.equal(20, n)
    end)

  spec("carries no debug hook over", function()
    await(spawn(function() debug.sethook(function() end, "l") end))
    local hooks = 0
    for _ = 1, 10 do
      await(spawn(function()
        if debug.gethook() then hooks = hooks + 1 end
      end))
    end
    assert.equal(0, hooks)
  end)

  spec("carries no values over", function()
    local weak = setmetatable({}, { __mode = "k" })
    await(spawn(function(...)
      local t = {}
      weak[t] = true
      suspend()
      return ...
    end, 1, 2, 3))
    collectgarbage()
    collectgarbage()
    assert.is_nil(next(weak))
  end)

  spec("carries no error state over", function()
    for _ = 1, 10 do pawait(spawn(error, "bad")) end
    for i = 1, 10 do
      assert.equal(i, await(spawn(function() suspend() return i end)))
    end
  end)

  spec("an old event does not resume a new coroutine (R27)", function()
    local futures, wrong = {}, 0
    for i = 1, 200 do
      local future, promise = vigil.future()
      futures[i] = { promise = promise, co = spawn(await, future) }
    end
    suspend()
    local fresh = {}
    for i = 1, 200 do
      futures[i].co:cancel()
      fresh[i] = spawn(function()
        local future, promise = vigil.future()
        spawn(function() promise:complete(i) end)
        if await(future) ~= i then wrong = wrong + 1 end
      end)
      futures[i].promise:complete("old")
    end
    vigil.await_all_or_fail(fresh)
    assert.equal(0, wrong)
  end)

  spec("ten thousand one after another keep the order of their results",
    function()
      for i = 1, 10000 do
        local co = spawn(function(n)
          if n % 3 == 0 then suspend() end
          return n
        end, i)
        assert(await(co) == i)
      end
      assert.is_thread((thread_of()))
    end)
end)

describe("a plain coroutine.yield in a body", function()
  spec("ends the coroutine with an error that says what to use", function()
    local ok, err = pawait(spawn(function() coroutine.yield(1) end))
    assert.is_false(ok)
    assert.matches("vigil.suspend", tostring(err), 1, true)
  end)

  spec("runs its finally handlers", function()
    local ran = false
    local co = spawn(function() coroutine.yield() end)
    co:finally(function() ran = true end)
    pawait(co)
    suspend()
    assert.is_true(ran)
    assert.equal("failed", co.state)
  end)

  spec("closes its <close> variables", function()
    local closed = false
    local co = spawn(function()
      local _ <close> = setmetatable({}, { __close = function()
        closed = true
      end })
      coroutine.yield()
    end)
    pawait(co)
    assert.is_true(closed)
  end)

  spec("with vigil.coroutine.yield is an error at the call", function()
    local ok, err = pawait(spawn(function()
      return select(2, pcall(vigil.coroutine.yield, 1))
    end))
    assert.is_true(ok)
    assert.matches("outside a plain coroutine", err)
  end)

  spec("does not disturb the coroutines after it", function()
    pawait(spawn(function() coroutine.yield(1) end))
    for i = 1, 5 do
      assert.equal(i, await(spawn(function() suspend() return i end)))
    end
  end)

  it("unawaited, fails the run", function()
    local ok, err = pcall(vigil.run, function()
      spawn(function() coroutine.yield(1) end)
    end)
    assert.is_false(ok)
    assert.matches("vigil.suspend", tostring(err), 1, true)
  end)
end)

describe("methods", function()
  for _, method in ipairs { "cancel", "cancel_requested", "finally",
    "awaiting", "traceback", "high_priority" } do
    spec(method .. " called on something else names what it wants",
      function()
        local ok, err = pcall(vigil.current()[method], {})
        assert.is_false(ok)
        assert.matches("vigil.coroutine expected", err, 1, true)
      end)
  end

  spec("is_closed is true once it has ended", function()
    local co = spawn(suspend)
    assert.is_false(co:is_closed())
    await(co)
    assert.is_true(co:is_closed())
  end)
end)
