-- Waiting for one thing: await and pawait, tokens, user-defined awaitables.
-- DESIGN 3, 5.4 to 5.9, 5.28; SEMANTICS AW, WK; FIELD-REPORTS R24, R38, R45.

local core = require "vigil.core"
local helper = require "spec.helper"
local vigil = require "vigil"

local spawn, suspend, sleep = vigil.spawn, vigil.suspend, vigil.sleep
local await, pawait = vigil.await, vigil.pawait

-- One spec that runs as the main coroutine of a run.
local function spec(name, fn)
  it(name, helper.in_vigil(fn))
end

-- A coroutine that runs fn and has got as far as its first wait.
local function started(fn, ...)
  local co = spawn(fn, ...)
  suspend()
  return co
end

local function settle()
  for _ = 1, 4 do suspend() end
end

local function assert_kind(kind, err)
  assert.is_true(vigil.is_error(err, kind),
    kind .. " expected, got " .. tostring(err))
end

local function values(first, last)
  local list = {}
  for i = first, last do list[#list + 1] = i end
  return list
end

-- A future that has already got its value, or its error.
local function completed(...)
  local future, promise = vigil.future()
  promise:complete(...)
  return future
end

local function failed(err)
  local future, promise = vigil.future()
  future:ignore()
  promise:fail(err)
  return future
end

describe("await", function()
  spec("returns what the coroutine returns", function()
    assert.same({ 1, "two", 3 }, { await(spawn(function()
      return 1, "two", 3
    end)) })
  end)

  spec("keeps nils among the results and at their end", function()
    local results = table.pack(await(spawn(function()
      return nil, 2, nil
    end)))
    assert.equal(3, results.n)
    assert.equal(2, results[2])
  end)

  spec("returns nil for a body that returns nothing (CO-05)", function()
    local results = table.pack(await(spawn(function() end)))
    assert.equal(1, results.n)
    assert.is_nil(results[1])
  end)

  spec("returns 200 results", function()
    local expected = values(1, 200)
    assert.same(expected, { await(spawn(function()
      return table.unpack(expected)
    end)) })
  end)

  spec("returns 200 results of a coroutine that waited", function()
    local expected = values(1, 200)
    assert.same(expected, { await(spawn(function()
      suspend()
      return table.unpack(expected)
    end)) })
  end)

  spec("passes 200 results through a waiting coroutine and a future",
    function()
      local expected = values(1, 200)
      local future, promise = vigil.future()
      local co = started(function() return await(future) end)
      promise:complete(table.unpack(expected))
      assert.same(expected, { await(co) })
    end)

  spec("raises what the coroutine raised, unchanged: a table", function()
    local err = {}
    local ok, got = pcall(await, spawn(error, err))
    assert.is_false(ok)
    assert.equal(err, got)
  end)

  spec("raises what the coroutine raised, unchanged: a string", function()
    local ok, got = pcall(await, spawn(error, "plain", 0))
    assert.is_false(ok)
    assert.equal("plain", got)
  end)

  spec("raises what the coroutine raised, unchanged: nil", function()
    local ok, got = pcall(await, spawn(error, nil))
    assert.is_false(ok)
    assert.is_nil(got)
  end)

  spec("raises what the coroutine raised, unchanged: false and a number",
    function()
      assert.same({ false, false }, { pcall(await, spawn(error, false)) })
      assert.same({ false, 42 }, { pcall(await, spawn(error, 42)) })
    end)

  spec("does not suspend for what has ended (WK-10)", function()
    local co, ran = spawn(function() return "v" end), false
    suspend()
    spawn(function() ran = true end)
    assert.equal("v", await(co))
    assert.is_false(ran)
  end)

  spec("suspends after 128 waits in a row that did not (DESIGN 5.6)",
    function()
      local future, ran = completed "v", false
      spawn(function() ran = true end)
      for _ = 1, 100 do await(future) end
      assert.is_false(ran)
      for _ = 1, 100 do await(future) end
      assert.is_true(ran)
    end)

  spec("keeps the results when it must suspend for fairness", function()
    local future = completed("a", nil, "c")
    for _ = 1, 300 do
      local results = table.pack(await(future))
      assert(results.n == 3 and results[1] == "a" and results[3] == "c")
    end
  end)

  spec("replays any number of times, each time the same (EV-09)", function()
    local co = spawn(function() return 1, 2 end)
    for _ = 1, 3 do assert.same({ 1, 2 }, { await(co) }) end
  end)

  spec("replays an error any number of times (EV-09)", function()
    local err = {}
    local co = spawn(error, err)
    for _ = 1, 3 do assert.same({ false, err }, { pawait(co) }) end
  end)

  spec("by several gives all the same outcome (AW-09)", function()
    local value, log = {}, {}
    local co = spawn(function()
      suspend()
      return value
    end)
    local waiters = {}
    for i = 1, 5 do
      waiters[i] = spawn(function() log[i] = await(co) end)
    end
    for i = 1, 5 do await(waiters[i]) end
    for i = 1, 5 do assert.equal(value, log[i]) end
  end)

  spec("by several gives all the same error, nobody else (AW-09, WK-15)",
    function()
      local err, log = {}, {}
      local co = spawn(function()
        suspend()
        error(err)
      end)
      local waiters = {}
      for i = 1, 3 do
        waiters[i] = spawn(function() log[i] = { pawait(co) } end)
      end
      for i = 1, 3 do await(waiters[i]) end
      for i = 1, 3 do assert.same({ false, err }, log[i]) end
    end)

  spec("raises the cancellation of a cancelled coroutine itself (AW-28)",
    function()
      local co = started(sleep, 9)
      co:cancel "enough"
      local ok, err = pcall(await, co)
      assert.is_false(ok)
      assert_kind("cancelled", err)
      assert.equal("enough", err.message)
      assert.equal(co.error, err)
    end)

  spec("of a cancelled child is an ordinary failure (DESIGN 5.4)", function()
    local co = started(sleep, 9)
    co:cancel()
    assert.is_false((vigil.pcall(await, co)))
    suspend() -- the parent is not cancelled
  end)

  spec("leaves the awaited coroutine running when it is cancelled (AW-10)",
    function()
      local finished = false
      local target = spawn(function()
        sleep(0.005)
        finished = true
        return "done"
      end)
      local waiter = started(await, target)
      waiter:cancel()
      pawait(waiter)
      assert.is_false(finished)
      assert.equal("done", await(target))
    end)

  spec("leaves nothing subscribed when it is cancelled (CN-03)", function()
    local future, promise = vigil.future()
    local woken = 0
    local waiter = started(function()
      await(future)
      woken = woken + 1
    end)
    waiter:cancel()
    promise:complete()
    settle()
    assert.equal(0, woken)
    assert.equal("cancelled", waiter.state)
  end)

  it("in the main chunk drives the loop", function()
    assert.equal("v", vigil.await(vigil.spawn(function()
      vigil.sleep(0.001)
      return "v"
    end)))
  end)

  it("in the main chunk raises errors unchanged", function()
    local err = {}
    assert.same({ false, err }, { pcall(vigil.await, vigil.spawn(error, err)) })
  end)
end)

describe("pawait", function()
  spec("returns true and the results", function()
    assert.same({ true, 1, 2 }, { pawait(spawn(function()
      return 1, 2
    end)) })
  end)

  spec("returns false and the error", function()
    local err = {}
    assert.same({ false, err }, { pawait(spawn(error, err)) })
  end)

  spec("returns 200 results", function()
    local expected = values(1, 200)
    local results = { pawait(spawn(function()
      return table.unpack(expected)
    end)) }
    assert.is_true(table.remove(results, 1))
    assert.same(expected, results)
  end)

  spec("returns false and the token's error", function()
    local ok, err = pawait(spawn(sleep, 0.01), 0.001)
    assert.is_false(ok)
    assert_kind("timeout", err)
  end)

  spec("lets the coroutine's own cancellation pass (DESIGN 5.4)", function()
    local after = false
    local co = started(function()
      pawait((vigil.future()))
      after = true
    end)
    co:cancel()
    pawait(co)
    assert.is_false(after)
    assert.equal("cancelled", co.state)
  end)

  spec("raises for misuse: no awaitable", function()
    local ok, err = pcall(pawait, 42)
    assert.is_false(ok)
    assert.matches("awaitable expected, got number", err)
  end)
end)

describe("misuse of await", function()
  spec("is refused: no argument", function()
    assert.is_false(pcall(await))
  end)

  for name, value in pairs {
    ["a table"] = {}, ["a string"] = "x", ["a function"] = print,
    ["a boolean"] = true, ["a plain coroutine"] = coroutine.create(print),
    ["a file"] = io.stdout,
  } do
    spec("is refused: " .. name, function()
      local ok, err = pcall(await, value)
      assert.is_false(ok)
      assert.matches("awaitable expected", err)
    end)
  end

  spec("is refused: a token that is not awaitable, by its position",
    function()
      local ok, err = pcall(await, completed(), "soon")
      assert.is_false(ok)
      assert.matches("#2", err)
      assert.matches("timeout", err)
    end)

  spec("is refused: a negative timeout, NaN", function()
    assert.is_false(pcall(await, completed(), -1))
    assert.is_false(pcall(await, completed(), 0 / 0))
  end)
end)

describe("await with a token", function()
  spec("gives the result when the target is first", function()
    local co = spawn(function()
      sleep(0.001)
      return "v"
    end)
    assert.equal("v", await(co, vigil.timeout(5)))
    assert.equal(0, core.counts().timers) -- the token is unsubscribed
  end)

  spec("ends when the token is first; the target runs on (AW-03)", function()
    local co = spawn(function()
      sleep(0.005)
      return "late"
    end)
    local token = vigil.timeout(0.001)
    local ok, err = pcall(await, co, token)
    assert.is_false(ok)
    assert_kind("timeout", err)
    assert.equal("ETIMEDOUT", err.code)
    assert.equal(token, err.token)
    assert.equal("late", await(co))
  end)

  spec("that is a number is a timeout (DESIGN 5.9)", function()
    local start = vigil.now()
    local ok, err = pawait(vigil.future(), 0.005)
    assert.is_false(ok)
    assert_kind("timeout", err)
    local took = vigil.now() - start
    assert.is_true(took >= 0.005, "took " .. took)
  end)

  spec("of 0 polls once: what is ready by then wins", function()
    local co = spawn(function() return "quick" end)
    assert.equal("quick", await(co, 0))
  end)

  spec("of 0 ends a wait that goes on", function()
    local ok, err = pawait(vigil.future(), 0)
    assert.is_false(ok)
    assert_kind("timeout", err)
  end)

  spec("of math.huge never fires, and keeps nothing going", function()
    local co = spawn(function()
      sleep(0.001)
      return "v"
    end)
    assert.equal("v", await(co, math.huge))
  end)

  spec("that completed with a value: kind cancelled, no cause (AW-03)",
    function()
      local token, promise = vigil.future()
      spawn(function() promise:complete "v" end)
      local ok, err = pawait(vigil.future(), token)
      assert.is_false(ok)
      assert_kind("cancelled", err)
      assert.is_nil(err.cause)
      assert.equal(token, err.token)
    end)

  spec("that failed: kind cancelled, its error is the cause (AW-03)",
    function()
      local why = {}
      local token = spawn(function()
        suspend()
        error(why)
      end)
      local ok, err = pawait(vigil.future(), token)
      assert.is_false(ok)
      assert_kind("cancelled", err)
      assert.equal(why, err.cause)
    end)

  spec("whose own error is a cancellation is wrapped all the same (AW-04)",
    function()
      local token = started(sleep, 9)
      spawn(function() token:cancel "inner" end)
      local ok, err = pawait(vigil.future(), token)
      assert.is_false(ok)
      assert_kind("cancelled", err)
      assert_kind("cancelled", err.cause)
      assert.equal("inner", err.cause.message)
    end)

  spec("that fired before, target pending: at once (AW-02)", function()
    local ran = false
    spawn(function() ran = true end)
    local token = completed()
    local ok, err = pawait(vigil.future(), token)
    assert.is_false(ok)
    assert_kind("cancelled", err)
    assert.is_false(ran) -- without any suspension
  end)

  spec("that is a timeout and has expired before: kind timeout (AW-05)",
    function()
      local token = vigil.timeout(0)
      sleep(0.002)
      local ok, err = pawait(vigil.future(), token)
      assert.is_false(ok)
      assert_kind("timeout", err)
      assert.equal(token, err.token)
      assert.is_nil(err.cause)
    end)

  spec("that failed before: at once, with the cause (AW-02)", function()
    local ok, err = pawait(vigil.future(), failed "why")
    assert.is_false(ok)
    assert_kind("cancelled", err)
    assert.equal("why", err.cause)
  end)

  spec("that fired before loses against a target that has settled", function()
    assert.equal("v", await(completed "v", completed()))
  end)

  spec("in the same tick, target first: the target wins", function()
    local target, t = vigil.future()
    local token, k = vigil.future()
    local co = started(function() return pawait(target, token) end)
    t:complete "v"
    k:complete()
    local _, ok, value = pawait(co)
    assert.is_true(ok)
    assert.equal("v", value)
  end)

  spec("in the same tick, token first: the token wins", function()
    local target, t = vigil.future()
    local token, k = vigil.future()
    local co = started(function() return pawait(target, token) end)
    k:complete()
    t:complete "v"
    local _, ok, err = pawait(co)
    assert.is_false(ok)
    assert_kind("cancelled", err)
  end)

  spec("that is the target itself is ignored: a coroutine (AW-06)",
    function()
      local co = spawn(function()
        suspend()
        return "v"
      end)
      assert.equal("v", await(co, co))
    end)

  spec("that is the target itself is ignored: a failed one (AW-06)",
    function()
      local err = {}
      local co = spawn(function()
        suspend()
        error(err)
      end)
      assert.same({ false, err }, { pawait(co, co) })
    end)

  spec("that has settled and is the target is ignored (AW-06)", function()
    local future = completed "v"
    assert.equal("v", await(future, future))
  end)

  spec("may serve several waits at once", function()
    local token, fire = vigil.future()
    local kinds, all = {}, {}
    for i = 1, 3 do
      all[i] = spawn(function()
        local _, err = pawait(vigil.future(), token)
        kinds[i] = err.kind
      end)
    end
    suspend()
    fire:complete()
    for i = 1, 3 do await(all[i]) end
    assert.same({ "cancelled", "cancelled", "cancelled" }, kinds)
  end)

  spec("that fails after the wait has ended stays an ordinary future (AW-08)",
    function()
      local token, promise = vigil.future()
      local co = spawn(function() return "v" end)
      assert.equal("v", await(co, token))
      promise:fail "later"
      assert.same({ false, "later" }, { pawait(token) })
    end)

  spec("that failed counts as caught, though nothing was waited for (AW-08)",
    function()
      local reports = 0
      vigil.on_unhandled(function() reports = reports + 1 end)
      do
        local token, promise = vigil.future()
        promise:fail "unseen"
        assert.equal("v", await(completed "v", token))
      end
      collectgarbage()
      collectgarbage()
      vigil.on_unhandled(nil)
      assert.equal(0, reports)
    end)

  spec("that is a coroutine which fails has handled its error (WK-15)",
    function()
      local token = spawn(function()
        suspend()
        error "not for the scope"
      end)
      assert.is_false((pawait(vigil.future(), token)))
    end)

  spec("is given up when the waiter is cancelled", function()
    local co = started(await, vigil.future(), vigil.timeout(60))
    co:cancel()
    pawait(co)
    assert.equal(0, core.counts().timers)
  end)
end)

describe("a wait that can never end", function()
  it("is a deadlock: awaiting oneself (DL-06)", function()
    local code, out = helper.run_script [[
      local vigil = require "vigil"
      vigil.configure { warnings = false }
      local ok, err = pcall(vigil.run, function()
        local fine, e = pcall(vigil.await, vigil.current())
        print(fine, e.kind)
      end)
      print(ok, err.kind)
    ]]
    assert.equal(0, code)
    assert.equal("false\tdeadlock\nfalse\tdeadlock\n", out)
  end)

  it("is a deadlock: awaiting each other, both are told (DL-01)", function()
    local code, out = helper.run_script [[
      local vigil = require "vigil"
      vigil.configure { warnings = false }
      local ok, err = pcall(vigil.run, function()
        local a, b
        a = vigil.spawn(function()
          print("a", vigil.is_error(select(2, vigil.pawait(b)), "deadlock"))
        end)
        b = vigil.spawn(function()
          print("b", vigil.is_error(select(2, vigil.pawait(a)), "deadlock"))
        end)
      end)
      print(ok, err.kind)
    ]]
    assert.equal(0, code)
    assert.equal("a\ttrue\nb\ttrue\nfalse\tdeadlock\n", out)
  end)

  it("is returned by pawait", function()
    local code, out = helper.run_script [[
      local vigil = require "vigil"
      vigil.configure { warnings = false }
      pcall(vigil.run, function()
        local ok, err = vigil.pawait((vigil.future()))
        print(ok, err.kind)
      end)
    ]]
    assert.equal(0, code)
    assert.equal("false\tdeadlock\n", out)
  end)

  spec("is none while its token can end it", function()
    local ok, err = pawait(vigil.future(), 0.002)
    assert.is_false(ok)
    assert_kind("timeout", err)
  end)
end)

-- User-defined awaitables: DESIGN 5.28.

local function awaitable(on_await, fields)
  return setmetatable(fields or {}, { __await = on_await })
end

describe("a user-defined awaitable", function()
  spec("gives what resolve was called with, later", function()
    local waker
    local object = awaitable(function(_, w) waker = w end)
    spawn(function() assert.is_true(waker:resolve(1, nil, 3)) end)
    local results = table.pack(await(object))
    assert.equal(3, results.n)
    assert.equal(1, results[1])
    assert.equal(3, results[3])
  end)

  spec("is given itself", function()
    local seen
    local object = awaitable(function(self, w)
      seen = self
      w:resolve()
    end)
    await(object)
    assert.equal(object, seen)
  end)

  spec("that resolves inside __await is ready at once (R24)", function()
    local ran = false
    spawn(function() ran = true end)
    local object = awaitable(function(_, w) w:resolve("a", "b") end)
    assert.same({ "a", "b" }, { await(object) })
    assert.is_false(ran)
  end)

  spec("that resolves inside __await works 10,000 times, fairly (R24)",
    function()
      local turns, stop = 0, false
      local other = spawn(function()
        while not stop do
          turns = turns + 1
          suspend()
        end
      end)
      local object = awaitable(function(self, w)
        self.n = self.n + 1
        w:resolve(self.n)
      end, { n = 0 })
      for i = 1, 10000 do assert(await(object) == i) end
      stop = true
      await(other)
      assert.is_true(turns > 50, "turns: " .. turns)
    end)

  spec("gives nil for a resolve without values", function()
    local results = table.pack(await(awaitable(function(_, w)
      w:resolve()
    end)))
    assert.equal(1, results.n)
    assert.is_nil(results[1])
  end)

  spec("gives 200 values", function()
    local expected, waker = values(1, 200), nil
    spawn(function() waker:resolve(table.unpack(expected)) end)
    assert.same(expected, { await(awaitable(function(_, w)
      waker = w
    end)) })
  end)

  spec("raises what it was rejected with, unchanged", function()
    local err, waker = {}, nil
    spawn(function() waker:reject(err) end)
    assert.same({ false, err }, { pawait(awaitable(function(_, w)
      waker = w
    end)) })
  end)

  spec("that rejects inside __await raises at once", function()
    local err = {}
    local ok, got = pcall(await, awaitable(function(_, w) w:reject(err) end))
    assert.is_false(ok)
    assert.equal(err, got)
  end)

  spec("whose __await raises: await raises that, unchanged", function()
    local err = {}
    local ok, got = pcall(await, awaitable(function() error(err) end))
    assert.is_false(ok)
    assert.equal(err, got)
  end)

  spec("whose __await raises: its waker refuses what comes late", function()
    local waker
    pawait(awaitable(function(_, w)
      waker = w
      error "broken"
    end))
    assert.is_false(waker:resolve "late")
  end)

  spec("that waits inside __await is told that it cannot", function()
    local ok, err = pcall(await, awaitable(function() sleep(0.01) end))
    assert.is_false(ok)
    assert.matches("cannot wait here", tostring(err))
  end)

  spec("accepts one outcome; late calls return false (R45)", function()
    local waker
    local co = started(function()
      return await(awaitable(function(_, w) waker = w end))
    end)
    assert.is_true(waker:resolve "first")
    assert.is_false(waker:resolve "second")
    assert.is_false(waker:reject "third")
    assert.equal("first", await(co))
    assert.is_false(waker:resolve "after the end")
  end)

  spec("has a waker of its own for each wait", function()
    local wakers = {}
    local object = awaitable(function(_, w) wakers[#wakers + 1] = w end)
    local a = started(function() return await(object) end)
    local b = started(function() return await(object) end)
    wakers[2]:resolve "two"
    wakers[1]:resolve "one"
    assert.equal("one", await(a))
    assert.equal("two", await(b))
  end)

  spec("is told of a cancellation, once (R54)", function()
    local told, waker = 0, nil
    local co = started(function()
      await(awaitable(function(_, w)
        waker = w
        w:on_cancel(function() told = told + 1 end)
      end))
    end)
    co:cancel()
    pawait(co)
    assert.equal(1, told)
    assert.is_false(waker:resolve "late")
    assert.equal(1, told)
  end)

  spec("is told when a token ended the wait, once (R54)", function()
    local told = 0
    local ok, err = pawait(awaitable(function(_, w)
      w:on_cancel(function() told = told + 1 end)
    end), 0.001)
    assert.is_false(ok)
    assert_kind("timeout", err)
    assert.equal(1, told)
  end)

  spec("is told when the token had fired before", function()
    local told = 0
    assert.is_false((pawait(awaitable(function(_, w)
      w:on_cancel(function() told = told + 1 end)
    end), completed())))
    assert.equal(1, told)
  end)

  spec("is not told after its completion (R54)", function()
    local told, waker = 0, nil
    local co = started(function()
      await(awaitable(function(_, w)
        waker = w
        w:on_cancel(function() told = told + 1 end)
      end))
      suspend()
    end)
    waker:resolve()
    suspend()
    co:cancel()
    pawait(co)
    assert.equal(0, told)
  end)

  spec("hears only what was registered last", function()
    local log = {}
    pawait(awaitable(function(_, w)
      w:on_cancel(function() log[#log + 1] = "old" end)
      w:on_cancel(function() log[#log + 1] = "new" end)
    end), 0.001)
    assert.same({ "new" }, log)
  end)

  spec("may register after it has waited a while", function()
    local told, waker = false, nil
    local co = started(function()
      await(awaitable(function(_, w) waker = w end))
    end)
    assert.is_true(waker:on_cancel(function() told = true end))
    co:cancel()
    pawait(co)
    assert.is_true(told)
    assert.is_false(waker:on_cancel(print))
  end)

  spec("whose on_cancel raises is reported, and the wait ends as it must",
    function()
      local reported
      vigil.on_unhandled(function(err) reported = err end)
      local ok, err = pawait(awaitable(function(_, w)
        w:on_cancel(function() error("in on_cancel", 0) end)
      end), 0.001)
      vigil.on_unhandled(nil)
      assert.is_false(ok)
      assert_kind("timeout", err)
      assert.equal("in on_cancel", reported)
    end)

  spec("that resolves inside on_cancel changes nothing", function()
    local late
    local ok, err = pawait(awaitable(function(_, w)
      w:on_cancel(function() late = w:resolve "late" end)
    end), 0.001)
    assert.is_false(ok)
    assert_kind("timeout", err)
    assert.is_false(late)
  end)

  spec("works with a token that is later", function()
    local waker
    spawn(function() waker:resolve "v" end)
    assert.equal("v", await(awaitable(function(_, w) waker = w end), 5))
  end)

  spec("may be a userdata or any value with the metafield", function()
    local mt = debug.getmetatable ""
    mt.__await = function(self, w) w:resolve(self .. "!") end
    local result = await "hello"
    mt.__await = nil
    assert.equal("hello!", result)
  end)

  spec("that nobody resolves is a deadlock, and hears of it", function()
    local code, out = helper.run_script [[
      local vigil = require "vigil"
      vigil.configure { warnings = false }
      local told = 0
      local object = setmetatable({}, { __await = function(_, w)
        w:on_cancel(function() told = told + 1 end)
      end })
      pcall(vigil.run, function()
        local ok, err = vigil.pawait(object)
        print(ok, err.kind, told)
      end)
    ]]
    assert.equal(0, code)
    assert.equal("false\tdeadlock\t1\n", out)
  end)

  spec("may await others from a coroutine that it spawns", function()
    local object = awaitable(function(_, w)
      spawn(function()
        sleep(0.001)
        w:resolve "composed"
      end)
    end)
    assert.equal("composed", await(object))
  end)

  spec("works in a generator", function()
    local waker
    local gen = vigil.coroutine.wrap(function()
      vigil.coroutine.yield(await(awaitable(function(_, w) waker = w end)))
    end)
    spawn(function() waker:resolve(7) end)
    assert.equal(7, gen())
  end)

  it("works in the main chunk", function()
    local waker
    vigil.spawn(function() waker:resolve "v" end)
    assert.equal("v", vigil.await(awaitable(function(_, w) waker = w end)))
  end)

  spec("is collected with its waker after the wait (GC-04)", function()
    local weak = setmetatable({}, { __mode = "v" })
    do
      local object = awaitable(function(self, w)
        self.waker = w
        w:on_cancel(function() return self end)
      end)
      weak.object = object
      pawait(object, 0.001)
      weak.waker = object.waker
    end
    collectgarbage()
    collectgarbage()
    assert.is_nil(weak.object)
    assert.is_nil(weak.waker)
  end)
end)

describe("awaiting other things", function()
  spec("a timer gives its ticks", function()
    assert.equal(1, await(vigil.timer(0.001)))
  end)

  spec("a timeout raises a timeout", function()
    local ok, err = pawait(vigil.timeout(0.001))
    assert.is_false(ok)
    assert_kind("timeout", err)
  end)

  spec("a closed timer raises closed", function()
    local timer = vigil.timer(5)
    timer:close()
    local ok, err = pawait(timer)
    assert.is_false(ok)
    assert_kind("closed", err)
  end)

  spec("a timer that is closed meanwhile raises closed", function()
    local timer = vigil.timer(5)
    spawn(function() timer:close() end)
    local ok, err = pawait(timer)
    assert.is_false(ok)
    assert_kind("closed", err)
  end)

  spec("a coroutine cancelled before it ran raises its cancellation (AW-28)",
    function()
      local co = spawn(function() end)
      co:cancel "why"
      local ok, err = pawait(co)
      assert.is_false(ok)
      assert.equal("why", err.message)
    end)
end)
