-- Futures and promises.  DESIGN 3, 5.3, 5.11; SEMANTICS FU, AW; FIELD-REPORTS
-- R19, R45.

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
  for _ = 1, 6 do suspend() end
end

local function assert_kind(kind, err)
  assert.is_true(vigil.is_error(err, kind),
    kind .. " expected, got " .. tostring(err))
end

local function completed(...)
  local future, promise = vigil.future()
  promise:complete(...)
  return future
end

local function failed(err)
  local future, promise = vigil.future()
  promise:fail(err)
  return future
end

-- Runs fn, collects what it left, and returns what on_unhandled was told:
-- { { error, info }, ... }.
local function unhandled(fn)
  local reports = {}
  vigil.on_unhandled(function(err, info)
    reports[#reports + 1] = { error = err, info = info }
  end)
  fn()
  settle()
  collectgarbage()
  collectgarbage()
  settle()
  vigil.on_unhandled(nil)
  return reports
end

describe("a promise", function()
  spec("completes its future with all values", function()
    local future, promise = vigil.future()
    promise:complete(1, nil, 3)
    local results = table.pack(await(future))
    assert.equal(3, results.n)
    assert.equal(1, results[1])
    assert.equal(3, results[3])
  end)

  spec("completes with no value: nil", function()
    local results = table.pack(await(completed()))
    assert.equal(1, results.n)
    assert.is_nil(results[1])
  end)

  spec("completes with 200 values", function()
    local expected = {}
    for i = 1, 200 do expected[i] = i end
    assert.same(expected, { await(completed(table.unpack(expected))) })
  end)

  spec("fails its future with any value, unchanged", function()
    for _, err in ipairs { "text", 42, false, {}, print } do
      assert.same({ false, err }, { pawait(failed(err)) })
    end
  end)

  spec("fails its future with nil", function()
    local ok, err = pawait(failed(nil))
    assert.is_false(ok)
    assert.is_nil(err)
  end)

  spec("needs an error to fail with", function()
    local _, promise = vigil.future()
    assert.is_false(pcall(promise.fail, promise))
  end)

  spec("leads to its future", function()
    local future, promise = vigil.future()
    assert.equal(future, promise:future())
  end)

  spec("wakes who waits", function()
    local future, promise = vigil.future()
    local co = started(function() return await(future) end)
    promise:complete "v"
    assert.equal("v", await(co))
  end)

  spec("runs nobody before its caller suspends (FU-04)", function()
    local future, promise = vigil.future()
    local ran = false
    started(function()
      await(future)
      ran = true
    end)
    promise:complete()
    assert.is_false(ran)
    settle()
    assert.is_true(ran)
  end)

  spec("may be used once: complete names the first place (FU-01)",
    function()
      local _, promise = vigil.future()
      local line = debug.getinfo(1, "l").currentline + 1
      promise:complete(1)
      local ok, err = pcall(promise.complete, promise, 2)
      assert.is_false(ok)
      assert.matches("settled already", err)
      assert.matches("future_spec.lua:" .. line, err)
    end)

  spec("may be used once: fail after complete changes nothing (FU-01)",
    function()
      local future, promise = vigil.future()
      promise:complete(1)
      assert.is_false(pcall(promise.fail, promise, "e"))
      assert.equal(1, await(future))
      assert.equal("completed", future:status())
    end)

  spec("may be used once: complete after fail changes nothing (FU-01)",
    function()
      local future, promise = vigil.future()
      local line = debug.getinfo(1, "l").currentline + 1
      promise:fail "e"
      local ok, err = pcall(promise.complete, promise, 1)
      assert.is_false(ok)
      assert.matches("future_spec.lua:" .. line, err)
      assert.same({ false, "e" }, { pawait(future) })
    end)

  spec("is no awaitable", function()
    local _, promise = vigil.future()
    local ok, err = pcall(await, promise)
    assert.is_false(ok)
    assert.matches("awaitable expected", err)
  end)

  spec("has checked methods", function()
    local future, promise = vigil.future()
    assert.is_false(pcall(promise.complete, future, 1))
    assert.is_false(pcall(promise.fail, {}, 1))
  end)

  it("works in the main chunk", function()
    local future, promise = vigil.future()
    vigil.spawn(function()
      vigil.sleep(0.001)
      promise:complete "v"
    end)
    assert.equal("v", vigil.await(future))
  end)
end)

describe("a future", function()
  spec("tells its status", function()
    local future, promise = vigil.future()
    assert.equal("pending", future:status())
    promise:complete()
    assert.equal("completed", future:status())
    local other = failed "e":ignore()
    assert.equal("failed", other:status())
    assert.matches("failed", tostring(other))
  end)

  spec("tells where it was made (EV-12)", function()
    local line = debug.getinfo(1, "l").currentline + 1
    local future = vigil.future()
    assert.matches("pending", tostring(future))
    assert.matches("future_spec.lua:" .. line, tostring(future))
  end)

  spec("replays to late subscribers (EV-09, EV-11)", function()
    local future = completed "v"
    assert.equal("v", await(future))
    assert.equal("v", future:await())
    assert.is_true(future:is_closed())
  end)

  spec("can be awaited by its method, with a token", function()
    local ok, err = pcall(vigil.future().await, (vigil.future()), 0.001)
    assert.is_false(ok)
    assert_kind("timeout", err)
  end)

  spec("wakes many waiters (AW-09)", function()
    local future, promise = vigil.future()
    local count, all = 0, {}
    for i = 1, 100 do
      all[i] = spawn(function()
        if await(future) == "v" then count = count + 1 end
      end)
    end
    suspend()
    promise:complete "v"
    vigil.await_all(all)
    assert.equal(100, count)
  end)
end)

describe("map", function()
  spec("gives a future of what fn returns (FU-02)", function()
    local future = completed(20, 1):map(function(a, b) return a + b, "x" end)
    assert.same({ 21, "x" }, { await(future) })
  end)

  spec("works on a pending future", function()
    local future, promise = vigil.future()
    local derived = future:map(function(v) return v * 2 end)
    assert.equal("pending", derived:status())
    promise:complete(21)
    assert.equal(42, await(derived))
  end)

  spec("is not called on an error, which passes through (FU-02)", function()
    local err, called = {}, false
    local derived = failed(err):map(function() called = true end)
    assert.same({ false, err }, { pawait(derived) })
    assert.is_false(called)
  end)

  spec("rejects with what fn raises (FU-05)", function()
    local err = {}
    local derived = completed():map(function() error(err) end)
    assert.same({ false, err }, { pawait(derived) })
  end)

  spec("runs in a coroutine of its own, later (FU-04)", function()
    local me, inside = vigil.current(), nil
    local derived = completed():map(function() inside = vigil.current() end)
    assert.is_nil(inside)
    await(derived)
    assert.is_truthy(inside)
    assert.not_equal(me, inside)
  end)

  spec("may wait in fn", function()
    local derived = completed "v":map(function(v)
      sleep(0.001)
      return v
    end)
    assert.equal("v", await(derived))
  end)

  spec("does not flatten a future that fn returns (FU-17)", function()
    local inner = completed "inner"
    local derived = completed():map(function() return inner end)
    assert.equal(inner, await(derived))
  end)

  spec("keeps fn's nil", function()
    local results = table.pack(await(completed(1):map(function() end)))
    assert.equal(1, results.n)
    assert.is_nil(results[1])
  end)

  spec("needs a function", function()
    local ok, err = pcall(function() completed():map(42) end)
    assert.is_false(ok)
    assert.matches("bad argument #1 to 'map'", err)
  end)

  spec("may be called several times; each stage runs once", function()
    local future, promise = vigil.future()
    local log = {}
    local a = future:map(function(v) log[#log + 1] = "a" .. v end)
    local b = future:map(function(v) log[#log + 1] = "b" .. v end)
    promise:complete(1)
    vigil.await_all { a, b }
    assert.same({ "a1", "b1" }, log)
  end)

  spec("works in long chains", function()
    local first, promise = vigil.future()
    local last = first
    for _ = 1, 200 do last = last:map(function(v) return v + 1 end) end
    promise:complete(0)
    assert.equal(200, await(last))
  end)

  spec("keeps the chain when only its end is kept (FU-10)", function()
    local promise, last
    do
      local first
      first, promise = vigil.future()
      last = first:map(function(v) return v .. "b" end)
        :map(function(v) return v .. "c" end)
    end
    collectgarbage()
    promise:complete "a"
    collectgarbage()
    assert.equal("abc", await(last))
  end)

  spec("runs although nobody keeps the derived future", function()
    local ran = false
    local future, promise = vigil.future()
    future:map(function() ran = true end)
    collectgarbage()
    promise:complete()
    settle()
    assert.is_true(ran)
  end)
end)

describe("catch", function()
  spec("gives a future of what fn makes of the error (FU-06)", function()
    local derived = failed "e":catch(function(e) return "caught " .. e end)
    assert.equal("caught e", await(derived))
  end)

  spec("is not called on success, which passes through (FU-02)", function()
    local called = false
    local derived = completed(1, 2):catch(function() called = true end)
    assert.same({ 1, 2 }, { await(derived) })
    assert.is_false(called)
  end)

  spec("takes nil for a value (FU-06)", function()
    local derived = failed "e":catch(function() end)
    assert.same({ true }, { pawait(derived) })
    assert.equal("completed", derived:status())
  end)

  spec("rejects with what fn raises (FU-05)", function()
    local derived = failed "e":catch(function(e) error(e .. "!", 0) end)
    assert.same({ false, "e!" }, { pawait(derived) })
  end)

  spec("gets a nil error", function()
    local seen = "nothing"
    await(failed(nil):catch(function(e) seen = e end))
    assert.is_nil(seen)
  end)

  spec("gets the cancellation of a cancelled future", function()
    local future = vigil.future()
    local derived = future:catch(function(e) return e.kind end)
    future:cancel()
    assert.equal("cancelled", await(derived))
  end)
end)

describe("finally", function()
  spec("is called with the value, which passes through (FU-07)", function()
    local seen
    local derived = completed(1, 2):finally(function(v)
      seen = v
      return "ignored"
    end)
    assert.same({ 1, 2 }, { await(derived) })
    assert.equal(1, seen)
  end)

  spec("is called with the error, which passes through (FU-07)", function()
    local err, seen = {}, nil
    local derived = failed(err):finally(function(e) seen = e end)
    assert.same({ false, err }, { pawait(derived) })
    assert.equal(err, seen)
  end)

  spec("overrides with its own error (FU-07)", function()
    local derived = completed(1):finally(function() error("mine", 0) end)
    assert.same({ false, "mine" }, { pawait(derived) })
  end)

  spec("keeps the original as the cause of an error object (FU-07)",
    function()
      local closed = vigil.channel()
      closed:close()
      local derived = failed "original":finally(function()
        local _, err = closed:recv()
        error(err)
      end)
      local ok, err = pawait(derived)
      assert.is_false(ok)
      assert_kind("closed", err)
      assert.equal("original", err.cause)
    end)
end)

describe("cancel of a future", function()
  spec("rejects it with a cancellation (FU-15)", function()
    local future = vigil.future()
    assert.is_true(future:cancel "not needed")
    local ok, err = pawait(future)
    assert.is_false(ok)
    assert_kind("cancelled", err)
    assert.equal("not needed", err.message)
    assert.is_true(future:is_cancelled())
    assert.equal("cancelled", future:status())
  end)

  spec("has a default reason (FU-15)", function()
    local future = vigil.future()
    future:cancel()
    assert_kind("cancelled", (select(2, pawait(future))))
  end)

  spec("takes an error of kind cancelled unchanged (FU-15)", function()
    local first = vigil.future()
    first:cancel "why"
    local _, err = pawait(first)
    local second = vigil.future()
    second:cancel(err)
    assert.equal(err, (select(2, pawait(second))))
  end)

  spec("takes no other reason", function()
    local future = vigil.future()
    assert.is_false(pcall(future.cancel, future, {}))
    assert.equal("pending", future:status())
  end)

  spec("does nothing to a settled one (FU-15)", function()
    local future = completed "v"
    assert.is_false(future:cancel())
    assert.equal("v", await(future))
    assert.is_false(future:is_cancelled())
  end)

  spec("twice keeps the first reason (FU-15)", function()
    local future = vigil.future()
    assert.is_true(future:cancel "first")
    assert.is_false(future:cancel "second")
    assert.equal("first", (select(2, pawait(future))).message)
  end)

  spec("wakes who waits", function()
    local future = vigil.future()
    local co = started(function() return pawait(future) end)
    future:cancel()
    local _, ok, err = pawait(co)
    assert.is_false(ok)
    assert_kind("cancelled", err)
  end)

  spec("does not stop the producer, whose promise then says false (FU-16)",
    function()
      local future, promise = vigil.future()
      local said
      local producer = started(function()
        sleep(0.001)
        said = promise:complete "too late"
      end)
      future:cancel()
      await(producer)
      assert.is_false(said)
      assert.is_true(future:is_cancelled())
      assert.is_false(promise:fail "too late")
    end)

  spec("of a derived future does not disturb its stage", function()
    local future, promise = vigil.future()
    local ran = false
    local derived = future:map(function() ran = true end)
    derived:cancel()
    promise:complete()
    settle() -- the run does not fail
    assert.is_true(ran)
    assert.is_true(derived:is_cancelled())
  end)

  spec("happens at the end of a <close> variable (DESIGN 5.10)", function()
    local kept
    do
      local future <close> = vigil.future()
      kept = future
    end
    assert.is_true(kept:is_cancelled())
  end)

  spec("is not reported when nobody saw it (GS-06)", function()
    assert.same({}, unhandled(function() vigil.future():cancel() end))
  end)
end)

describe("a failed future that nobody caught", function()
  spec("is reported when it is collected, once (FU-12, R19)", function()
    local err = {}
    local reports = unhandled(function() failed(err) end)
    assert.equal(1, #reports)
    assert.equal(err, reports[1].error)
  end)

  spec("is not reported while somebody holds it", function()
    local kept
    local reports = unhandled(function() kept = failed "e" end)
    assert.same({}, reports)
    kept:ignore()
  end)

  spec("is reported with where it was made and settled (FU-12)", function()
    local made
    local reports = unhandled(function()
      made = debug.getinfo(1, "l").currentline + 1
      local _, promise = vigil.future()
      promise:fail "e"
    end)
    local what = reports[1].info.what
    assert.matches("made at [^ ]*future_spec.lua:" .. made, what)
    assert.matches("failed at [^ ]*future_spec.lua:" .. made + 1, what)
  end)

  spec("is not reported when it was awaited", function()
    assert.same({}, unhandled(function() pawait(failed "e") end))
  end)

  spec("is not reported when a waiter was there", function()
    assert.same({}, unhandled(function()
      local future, promise = vigil.future()
      local co = started(function() return pawait(future) end)
      promise:fail "e"
      await(co)
    end))
  end)

  spec("is not reported when it was ignored before (FU-14)", function()
    assert.same({}, unhandled(function()
      local future, promise = vigil.future()
      assert.equal(future, future:ignore())
      promise:fail "e"
    end))
  end)

  spec("is not reported when it was ignored after (FU-14)", function()
    assert.same({}, unhandled(function() failed "e":ignore() end))
  end)

  spec("is not reported when it was a member or a case", function()
    assert.same({}, unhandled(function()
      vigil.await_all { failed "a" }
      vigil.select { failed "b" }
    end))
  end)

  spec("with a catch at the end of its chain is not reported (FU-13)",
    function()
      assert.same({}, unhandled(function()
        failed "e":map(print):finally(function() end)
          :catch(function() end)
      end))
    end)

  spec("with only map behind it is reported once (FU-12)", function()
    local reports = unhandled(function() failed "e":map(print):map(print) end)
    assert.equal(1, #reports)
    assert.equal("e", reports[1].error)
  end)

  spec("with only finally behind it is reported once (FU-12)", function()
    local reports = unhandled(function()
      failed "e":finally(function() end)
    end)
    assert.equal(1, #reports)
    assert.equal("e", reports[1].error)
  end)

  spec("by its catch handler's own error is reported", function()
    local reports = unhandled(function()
      failed "e":catch(function() error("in catch", 0) end)
    end)
    assert.equal(1, #reports)
    assert.equal("in catch", reports[1].error)
  end)

  it("is reported on stderr by default, with the error (DESIGN 5.3)",
    function()
      local code, out, err = helper.run_script [[
        local vigil = require "vigil"
        vigil.run(function()
          local _, promise = vigil.future()
          promise:fail "nobody saw this"
        end)
        collectgarbage()
        print "end"
      ]]
      assert.equal(0, code)
      assert.equal("end\n", out)
      assert.matches("nobody saw this", err)
    end)

  it("is reported at the end of the state, too", function()
    local code, _, err = helper.run_script [[
      local vigil = require "vigil"
      kept = {}
      vigil.run(function()
        kept.future, kept.promise = vigil.future()
        kept.promise:fail "kept until the end"
      end)
    ]]
    assert.equal(0, code)
    assert.matches("kept until the end", err)
  end)
end)

describe("lifetime of futures", function()
  spec("a cycle through value and future is collected (GC-04)", function()
    local weak = setmetatable({}, { __mode = "v" })
    do
      local future, promise = vigil.future()
      promise:complete { future = future, promise = promise }
      weak.future = future
    end
    collectgarbage()
    assert.is_nil(weak.future)
  end)

  spec("a cycle through a pending stage is collected (GC-04)", function()
    local weak = setmetatable({}, { __mode = "v" })
    do
      local future, promise = vigil.future()
      local holder = { promise = promise }
      holder.derived = future:map(function() return holder end)
      weak.future, weak.derived = future, holder.derived
    end
    collectgarbage()
    collectgarbage()
    assert.is_nil(weak.future)
    assert.is_nil(weak.derived)
  end)

  spec("a settled chain keeps nothing but the values (GC-04)", function()
    local weak = setmetatable({}, { __mode = "v" })
    local last
    do
      local first, promise = vigil.future()
      weak.first = first
      last = first:map(function() return 1 end)
      promise:complete {}
    end
    await(last)
    settle()
    collectgarbage()
    collectgarbage()
    assert.is_nil(weak.first)
  end)

  spec("10,000 futures leave no memory behind (GC-09)", function()
    local function round()
      for i = 1, 10000 do
        local future, promise = vigil.future()
        if i % 2 == 0 then promise:complete(i) end
        if i % 100 == 0 then await(future) end
      end
      collectgarbage()
      collectgarbage()
      return collectgarbage "count"
    end
    local before = round()
    local after = round()
    assert.is_true(after < before + 64, before .. " -> " .. after)
  end)

  it("a promise may settle after the run, nothing happens", function()
    local kept
    vigil.run(function()
      local _, promise = vigil.future()
      kept = promise
    end)
    kept:complete(1)
    assert.equal(1, vigil.await(kept:future()))
  end)
end)

describe("stages and scopes", function()
  spec("a stage runs in the scope that registered it (FU-09)", function()
    local future, promise = vigil.future()
    local ran, done = false, nil
    -- The stage belongs to iterate's scope: its end waits for the stage.
    vigil.iterate({ 1 }, function()
      spawn(function() promise:complete() end)
      done = future:map(function()
        suspend()
        ran = true
      end)
      await(done)
    end)
    assert.is_true(ran)
  end)

  it("a cancelled source leaves its derived futures cancelled (FU-02, FU-15)",
    helper.in_vigil(function()
      local source = (vigil.future())
      local mapped, after = source:map(print), source:finally(function() end)
      source:cancel("enough")
      vigil.await_all { mapped, after }
      assert.is_true(mapped:is_cancelled())
      assert.is_true(after:is_cancelled())
    end))

  it("a derived future names the line of the call that made it",
    helper.in_vigil(function()
      local mapped = (vigil.future()):map(print)
      assert.matches("future_spec.lua:%d+$", tostring(mapped))
    end))
end)
