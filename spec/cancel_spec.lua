-- Cancellation: a state, not a message.  DESIGN 5.4, 5.5; SEMANTICS CN, PR;
-- FIELD-REPORTS R37 to R45, R51, R52.

local core = require "vigil.core"
local helper = require "spec.helper"
local vigil = require "vigil"

local spawn, sleep, suspend = vigil.spawn, vigil.sleep, vigil.suspend
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

-- Cancels the running coroutine, as another one would.
local function cancel_me(reason)
  vigil.current():cancel(reason)
end

-- What a cancelled coroutine sees inside fn, which runs with the cancellation
-- pending; returns what pawait gives for it.
local function cancelled(fn)
  return pawait(spawn(function()
    cancel_me("stop")
    return fn()
  end))
end

local function assert_kind(kind, err)
  assert.is_true(vigil.is_error(err, kind),
    kind .. " expected, got " .. tostring(err))
end

describe("cancel before the start", function()
  spec("never runs the body (CN-01)", function()
    local ran = false
    local co = spawn(function() ran = true end)
    co:cancel()
    pawait(co)
    assert.is_false(ran)
  end)

  spec("runs the finally handlers (CN-01)", function()
    local seen
    local co = spawn(function() end)
    co:finally(function(ended) seen = ended end)
    co:cancel()
    pawait(co)
    assert.equal(co, seen)
  end)

  spec("gives awaiters the cancellation (CN-01, AW-28)", function()
    local co = spawn(function() end)
    co:cancel("not needed")
    local ok, err = pawait(co)
    assert.is_false(ok)
    assert_kind("cancelled", err)
    assert.equal("not needed", err.message)
  end)

  spec("leaves it queued until its turn (CO-04)", function()
    local co = spawn(function() end)
    co:cancel()
    assert.equal("queued", co.state)
    assert.is_true(co:cancel_requested())
    pawait(co)
    assert.equal("cancelled", co.state)
  end)

  spec("does not keep the arguments (GC-04)", function()
    local weak = setmetatable({ {} }, { __mode = "v" })
    local co = spawn(function() end, weak[1])
    co:cancel()
    pawait(co)
    collectgarbage()
    collectgarbage()
    assert.is_nil(weak[1])
  end)

  spec("leaves a thread that serves the next coroutine (R27)", function()
    local co = spawn(function() end, 1, 2, 3)
    co:cancel()
    pawait(co)
    assert.same({ 2, "a", "b" }, { await(spawn(function(...)
      return select("#", ...), ...
    end, "a", "b")) })
  end)
end)

describe("cancel while waiting", function()
  spec("raises at the wait (CN-03)", function()
    local seen
    local co = started(function()
      local _, err = pcall(sleep, 10)
      seen = err
    end)
    co:cancel("enough")
    await(co)
    assert_kind("cancelled", seen)
    assert.equal("enough", seen.message)
  end)

  spec("drops the receiver from its channel (CN-03)", function()
    local ch = vigil.channel()
    local co = started(function() ch:recv() end)
    co:cancel()
    assert.is_false(ch:try_send(1))
    pawait(co)
  end)

  spec("drops the sender from its channel with its value (CN-03)", function()
    local ch = vigil.channel()
    local co = started(function() ch:send("lost") end)
    co:cancel()
    assert.is_nil((ch:try_recv()))
    pawait(co)
  end)

  spec("leaves the event to its other waiters (CN-03)", function()
    local future, promise = vigil.future()
    local a = started(await, future)
    local b = started(await, future)
    a:cancel()
    promise:complete("value")
    assert.equal("value", await(b))
    assert.equal("cancelled", a.state)
  end)

  spec("leaves the awaited coroutine running (AW-10)", function()
    local child = spawn(function() sleep(0.01) return "done" end)
    local parent = started(await, child)
    parent:cancel()
    pawait(parent)
    assert.equal("suspended", child.state)
    assert.equal("done", await(child))
  end)

  spec("runs its observers at once, not when the sleep is over (R45)",
    function()
      local calls = 0
      local co = started(sleep, 5)
      co:finally(function() calls = calls + 1 end)
      local before = vigil.now()
      co:cancel()
      pawait(co)
      assert.is_true(vigil.now() - before < 0.5)
      assert.equal(1, calls)
    end)

  spec("disarms its timer (R52)", function()
    local before = core.counts().timers
    local co = started(sleep, 3600)
    assert.equal(before + 1, core.counts().timers)
    co:cancel()
    assert.equal(before, core.counts().timers)
    pawait(co)
  end)

  it("of 10,000 sleepers leaves no timer and ends the run (R52)", function()
    local before = vigil.now()
    vigil.run(function()
      local list = {}
      for i = 1, 10000 do list[i] = spawn(sleep, 3600) end
      suspend()
      for i = 1, #list do list[i]:cancel() end
      assert.equal(0, core.counts().timers)
    end)
    assert.is_true(vigil.now() - before < 5)
  end)

  spec("in a select takes it out of every case (R63)", function()
    local a, b, c = vigil.channel(), vigil.channel(), vigil.channel()
    local co = started(function()
      vigil.select { a:receiving(), b:receiving(), c:sending(1) }
    end)
    co:cancel()
    assert.is_false(a:try_send(1))
    assert.is_false(b:try_send(1))
    assert.is_nil((c:try_recv()))
    pawait(co)
  end)

  spec("in a plain-library generator raises in the generator (R35)",
    function()
      local seen
      local co = started(function()
        local step = vigil.coroutine.wrap(function()
          local _, err = pcall(sleep, 10)
          seen = err
          error(err, 0)
        end)
        step()
      end)
      co:cancel("stop")
      local ok, err = pawait(co)
      assert.is_false(ok)
      assert.equal(seen, err)
      assert_kind("cancelled", seen)
    end)
end)

describe("cancel while queued with a result", function()
  spec("wins over the result (CN-03)", function()
    local future, promise = vigil.future()
    local co = started(await, future)
    promise:complete(1)
    assert.equal("queued", co.state)
    co:cancel()
    local ok, err = pawait(co)
    assert.is_false(ok)
    assert_kind("cancelled", err)
  end)

  spec("wins over the end of the awaited coroutine", function()
    local child = spawn(function() suspend() return 1 end)
    local co
    co = spawn(function() return await(child) end)
    spawn(function()
      repeat suspend() until child.state == "completed"
      assert.equal("queued", co.state)
      co:cancel()
    end)
    assert.is_false((pawait(co)))
    assert.equal("cancelled", co.state)
  end)

  spec("gives a channel's value to the next receiver (DESIGN 3)", function()
    local ch = vigil.channel()
    local a = started(function() return ch:recv() end)
    local b = started(function() return ch:recv() end)
    ch:send("value")
    a:cancel()
    assert.equal("value", await(b))
    assert.is_false((pawait(a)))
  end)

  spec("puts the value back in front if nobody else waits (ruling 25)",
    function()
      local ch = vigil.channel(2)
      local a = started(function() return ch:recv() end)
      ch:send("first")
      ch:send("second")
      a:cancel()
      assert.equal("first", ch:recv())
      assert.equal("second", ch:recv())
      pawait(a)
    end)

  spec("of a rendezvous keeps the value for the next recv (ruling 25)",
    function()
      local ch = vigil.channel()
      local a = started(function() return ch:recv() end)
      ch:send("value")
      a:cancel()
      pawait(a)
      assert.equal("value", ch:recv())
    end)

  spec("keeps the order of three values for three receivers", function()
    local ch, got = vigil.channel(), {}
    local function receive()
      local value = ch:recv()
      got[#got + 1] = value
    end
    local a = started(receive)
    local b, c = started(receive), started(receive)
    ch:send(1)
    ch:send(2)
    ch:send(3)
    a:cancel()
    await(b)
    await(c)
    assert.same({ 1, 2 }, got)
    assert.equal(3, ch:recv())
    pawait(a)
  end)

  spec("gives a freed slot to the next sender (DESIGN 3)", function()
    local ch = vigil.channel(1)
    ch:send(0)
    local a = started(function() return ch:send("a") end)
    local b = started(function() return ch:send("b") end)
    assert.equal(0, ch:recv())
    a:cancel()
    assert.is_true((await(b)))
    assert.equal("b", ch:recv())
    assert.equal(0, #ch)
    pawait(a)
  end)

  spec("leaves a future's value to the others", function()
    local future, promise = vigil.future()
    local a, b = started(await, future), started(await, future)
    promise:complete("value")
    a:cancel()
    assert.equal("value", await(b))
    assert.equal("value", await(future))
    pawait(a)
  end)

  spec("inside protect leaves the result with it (PR-01)", function()
    local future, promise = vigil.future()
    local got
    local co = started(function()
      vigil.protect(function() got = await(future) end)
    end)
    promise:complete("value")
    co:cancel()
    pawait(co)
    assert.equal("value", got)
    assert.equal("cancelled", co.state)
  end)
end)

describe("cancel after the end", function()
  spec("has no effect and says so (CN-06, R51)", function()
    local co = spawn(function() return 7 end)
    await(co)
    assert.is_false(co:cancel())
    assert.equal("completed", co.state)
    assert.equal(7, await(co))
    assert.is_false(co:cancel_requested())
  end)

  spec("of a failed coroutine keeps its error (CN-06)", function()
    local co = spawn(error, "bad")
    pawait(co)
    assert.is_false(co:cancel())
    assert.equal("failed", co.state)
    assert.equal("bad", co.error)
  end)

  spec("of a cancelled one keeps the first reason (CN-06)", function()
    local co = started(sleep, 10)
    co:cancel("first")
    pawait(co)
    assert.is_false(co:cancel("second"))
    assert.equal("first", co.error.message)
  end)
end)

describe("cancel of oneself", function()
  spec("returns, and raises at the next suspension (R51)", function()
    local returned
    local co = spawn(function()
      returned = vigil.current():cancel("me")
      suspend()
      returned = "went on"
    end)
    local ok, err = pawait(co)
    assert.is_true(returned)
    assert.is_false(ok)
    assert.equal("me", err.message)
    assert.equal("cancelled", co.state)
  end)

  spec("before a return without waiting gives the result", function()
    local co = spawn(function()
      cancel_me()
      return 7
    end)
    assert.equal(7, await(co))
    assert.equal("completed", co.state)
  end)

  it("of the main coroutine is what run raises", function()
    local ok, err = pcall(vigil.run, function()
      cancel_me("main")
      suspend()
    end)
    assert.is_false(ok)
    assert_kind("cancelled", err)
    assert.equal("main", err.message)
  end)
end)

describe("cancel twice", function()
  spec("keeps the first reason (CN-07)", function()
    local co = started(sleep, 10)
    assert.is_true(co:cancel("first"))
    assert.is_false(co:cancel("second"))
    local _, err = pawait(co)
    assert.equal("first", err.message)
  end)

  spec("before the start keeps the first reason (CN-07)", function()
    local co = spawn(sleep, 10)
    assert.is_true(co:cancel("first"))
    assert.is_false(co:cancel("second"))
    local _, err = pawait(co)
    assert.equal("first", err.message)
  end)

  spec("inside protect keeps the first reason (PR-02)", function()
    local co = started(function()
      vigil.protect(function() sleep(0.01) end)
    end)
    co:cancel("first")
    co:cancel("second")
    local _, err = pawait(co)
    assert.equal("first", err.message)
  end)
end)

describe("the reason", function()
  spec("has a default message and a code (CN-09)", function()
    local co = started(sleep, 10)
    co:cancel()
    local _, err = pawait(co)
    assert.equal("cancelled", err.kind)
    assert.equal("ECANCELED", err.code)
    assert.equal("cancelled", err.message)
  end)

  spec("given as an object reaches body and awaiter unchanged (CN-09)",
    function()
      local model = started(sleep, 10)
      model:cancel("model")
      local _, reason = pawait(model)
      local seen
      local co = started(function()
        local _, err = pcall(sleep, 10)
        seen = err
        error(err, 0)
      end)
      co:cancel(reason)
      local _, err = pawait(co)
      assert.equal(reason, seen)
      assert.equal(reason, err)
    end)

  for name, bad in pairs { ["a number"] = 5, ["a table"] = {},
    ["a boolean"] = true } do
    spec("must not be " .. name .. " (CN-10)", function()
      local co = started(sleep, 0.001)
      local ok, err = pcall(co.cancel, co, bad)
      assert.is_false(ok)
      assert.matches("reason", err)
      assert.is_false(co:cancel_requested())
      await(co)
    end)
  end

  spec("must not be an error of another kind (CN-10)", function()
    local _, timeout = pcall(vigil.with_timeout, 0, sleep, 1)
    local co = started(sleep, 0.001)
    assert.is_false((pcall(co.cancel, co, timeout)))
    assert.is_false(co:cancel_requested())
    await(co)
  end)
end)

describe("a cancelled coroutine", function()
  spec("gets it again at each suspension that pcall hides (R38)", function()
    local errors = {}
    cancelled(function()
      for i = 1, 3 do
        local _, err = pcall(sleep, 10)
        errors[i] = err
      end
    end)
    assert_kind("cancelled", errors[1])
    assert.equal(errors[1], errors[2])
    assert.equal(errors[1], errors[3])
  end)

  spec("in a loop of pcall(sleep) never waits again (R38)", function()
    local rounds = 0
    local co = started(function()
      repeat
        pcall(sleep, 10)
        rounds = rounds + 1
      until rounds == 100
    end)
    local before = vigil.now()
    co:cancel()
    await(co)
    assert.equal(100, rounds)
    assert.is_true(vigil.now() - before < 1)
  end)

  local function places()
    local future, promise = vigil.future()
    promise:complete(1)
    local open, ready, closed = vigil.channel(4), vigil.channel(1),
      vigil.channel()
    ready:try_send(1)
    closed:close()
    local ended = vigil.current()
    return {
      sleep = function() sleep(0.001) end,
      ["sleep(0)"] = function() sleep(0) end,
      suspend = suspend,
      checkpoint = vigil.checkpoint,
      ["await of something ready"] = function() await(future) end,
      ["pawait of something ready"] = function() pawait(future) end,
      ["await of a coroutine"] = function() await(ended) end,
      ["send into free space"] = function() open:send(1) end,
      ["recv of a value"] = function() ready:recv() end,
      ["recv from a closed channel"] = function() closed:recv() end,
      ["iteration of a channel"] = function() for _ in ready do end end,
      ["select of something ready"] = function()
        vigil.select { future, default = true }
      end,
      await_all = function() vigil.await_all { future } end,
      await_any_or_fail = function()
        vigil.await_any_or_fail { future }
      end,
      iterate = function() vigil.iterate({ 1 }, function() end) end,
      ["await of a fired timeout"] = function()
        await(vigil.timeout(0))
      end,
    }
  end
  local names = {}
  vigil.run(function()
    for name in pairs(places()) do names[#names + 1] = name end
  end)
  table.sort(names)
  for _, name in ipairs(names) do
    spec("is stopped at " .. name .. " (ruling 5)", function()
      local place = places()[name]
      local _, err = cancelled(function()
        local ok, err = pcall(place)
        assert.is_false(ok)
        error(err, 0)
      end)
      assert_kind("cancelled", err)
      assert.equal("stop", err.message)
    end)
  end

  spec("sends nothing into a channel with room (ruling 5)", function()
    local ch = vigil.channel(4)
    cancelled(function() ch:send(1) end)
    assert.equal(0, #ch)
  end)

  spec("takes nothing out of a channel (ruling 5)", function()
    local ch = vigil.channel(4)
    ch:send(1)
    cancelled(function() ch:recv() end)
    assert.equal(1, #ch)
  end)

  spec("may still call try_send, try_recv and close (ruling 5)", function()
    local ch = vigil.channel(4)
    local ok, got = cancelled(function()
      ch:try_send("x")
      local value = ch:try_recv()
      ch:close()
      return value
    end)
    assert.is_true(ok)
    assert.equal("x", got)
    assert.is_true(ch:is_closed())
  end)

  spec("may still read fields and spawn (ruling 5)", function()
    local ok, id = cancelled(function()
      spawn(function() end)
      return vigil.current().id
    end)
    assert.is_true(ok)
    assert.is_number(id)
  end)

  spec("reads cancel_requested as true from inside (R40)", function()
    local before, after
    cancelled(function()
      after = vigil.current():cancel_requested()
    end)
    await(spawn(function()
      before = vigil.current():cancel_requested()
    end))
    assert.is_false(before)
    assert.is_true(after)
  end)

  spec("that returns a value has that result; the flag stays (CN-11, R39)",
    function()
      local co = started(function()
        pcall(sleep, 10)
        return 7
      end)
      co:cancel()
      assert.equal(7, await(co))
      assert.equal(7, await(co))
      assert.equal("completed", co.state)
      assert.is_true(co:cancel_requested())
      assert.is_nil(co.error)
    end)

  spec("that nobody awaits ends silently (GS-06, CO-12)", function()
    local co = started(sleep, 10)
    co:cancel()
    suspend()
    assert.equal("cancelled", co.state)
  end)

  spec("that fails otherwise is failed, with the cancellation as the cause "
    .. "(CO-13)", function()
    local _, own = pcall(vigil.with_timeout, 0, sleep, 1)
    local co = started(function()
      pcall(sleep, 10)
      error(own, 0)
    end)
    co:cancel("stop")
    local ok, err = pawait(co)
    assert.is_false(ok)
    assert.equal(own, err)
    assert.equal("failed", co.state)
    assert.equal("stop", err.cause and err.cause.message)
  end)

  spec("whose clean-up fails is failed, with the cancellation as the cause "
    .. "(CO-13)", function()
    local _, own = pcall(vigil.with_timeout, 0, sleep, 1)
    local co = started(function()
      local _ <close> = setmetatable({}, { __close = function()
        error(own, 0)
      end })
      sleep(10)
    end)
    co:cancel("stop")
    local ok, err = pawait(co)
    assert.is_false(ok)
    assert.equal(own, err)
    assert.equal("failed", co.state)
    assert.equal("stop", err.cause and err.cause.message)
  end)

  spec("spinning on checkpoint is stopped by whoever cancels it (R40)",
    function()
      local rounds = 0
      local co = spawn(function()
        while true do
          rounds = rounds + 1
          if rounds % 100 == 0 then suspend() end
          vigil.checkpoint()
        end
      end)
      spawn(function() co:cancel() end)
      pawait(co)
      assert.equal("cancelled", co.state)
      assert.is_true(rounds <= 200)
    end)

  spec("that spawned children leaves them running", function()
    local child
    local co = started(function()
      child = spawn(function() sleep(0.005) return "alive" end)
      sleep(10)
    end)
    suspend()
    co:cancel()
    pawait(co)
    assert.equal("alive", await(child))
  end)
end)

describe("who may cancel", function()
  spec("a sibling (R51)", function()
    local a = spawn(sleep, 10)
    local b = spawn(function() a:cancel("by sibling") end)
    await(b)
    local _, err = pawait(a)
    assert.equal("by sibling", err.message)
  end)

  spec("a child its parent (R51)", function()
    local parent = spawn(function()
      local me = vigil.current()
      await(spawn(function() me:cancel("by child") end))
    end)
    local _, err = pawait(parent)
    assert.equal("by child", err.message)
  end)

  spec("a finally handler of another", function()
    local a = spawn(sleep, 10)
    spawn(function() end):finally(function() a:cancel("by handler") end)
    local _, err = pawait(a)
    assert.equal("by handler", err.message)
  end)
end)

describe("vigil.pcall", function()
  spec("lets the own cancellation pass", function()
    local reached = false
    local ok, err = cancelled(function()
      vigil.pcall(sleep, 10)
      reached = true
    end)
    assert.is_false(ok)
    assert_kind("cancelled", err)
    assert.is_false(reached)
  end)

  spec("lets it pass through several levels", function()
    local reached = false
    local co = started(function()
      vigil.pcall(vigil.pcall, function()
        vigil.pcall(sleep, 10)
        reached = true
      end)
      reached = true
    end)
    co:cancel()
    pawait(co)
    assert.is_false(reached)
    assert.equal("cancelled", co.state)
  end)

  spec("catches an ordinary error", function()
    assert.same({ false, "bad" }, { vigil.pcall(error, "bad") })
  end)

  spec("catches an ordinary error of a cancelled coroutine", function()
    local ok, caught = cancelled(function()
      return select(2, vigil.pcall(error, "bad"))
    end)
    assert.is_true(ok)
    assert.equal("bad", caught)
  end)

  spec("returns all results", function()
    assert.same({ true, 1, nil, 3 },
      { vigil.pcall(function() suspend() return 1, nil, 3 end) })
  end)

  spec("catches the cancellation of an awaited child (ruling 4)", function()
    local child = started(sleep, 10)
    child:cancel("child")
    local ok, err = vigil.pcall(await, child)
    assert.is_false(ok)
    assert.equal("child", err.message)
  end)

  spec("catches a token's error (ruling 4)", function()
    local child = spawn(sleep, 0.002)
    local ok, err = vigil.pcall(await, child, 0)
    assert.is_false(ok)
    assert_kind("timeout", err)
  end)

  spec("inside with_timeout lets that timeout pass (ruling 4)", function()
    local reached = false
    local ok, err = pcall(vigil.with_timeout, 0.001, function()
      vigil.pcall(sleep, 10)
      reached = true
    end)
    assert.is_false(ok)
    assert_kind("timeout", err)
    assert.is_false(reached)
  end)

  spec("around with_timeout catches its timeout", function()
    local ok, err = vigil.pcall(vigil.with_timeout, 0.001, sleep, 10)
    assert.is_false(ok)
    assert_kind("timeout", err)
  end)
end)

describe("vigil.checkpoint", function()
  spec("does nothing, and lets nobody run, without a cancellation",
    function()
      local ran = false
      spawn(function() ran = true end)
      vigil.checkpoint()
      assert.is_false(ran)
    end)

  spec("raises the timeout of a block that is over (R40)", function()
    local ok, err = pcall(vigil.with_timeout, 0.001, function()
      local stop = vigil.now() + 0.5
      while vigil.now() < stop do
        suspend()
        vigil.checkpoint()
      end
    end)
    assert.is_false(ok)
    assert_kind("timeout", err)
  end)

  spec("stops pure computation in a block that is over (R40)", function()
    local ok, err = pcall(vigil.with_timeout, 0.002, function()
      local stop = vigil.now() + 0.5
      while vigil.now() < stop do vigil.checkpoint() end
    end)
    assert.is_false(ok)
    assert_kind("timeout", err)
  end)

  it("does nothing in the main chunk", function()
    assert.equal(0, select("#", vigil.checkpoint()))
  end)
end)

describe("protect", function()
  spec("returns what its function returns", function()
    assert.same({ 1, nil, 3 },
      { vigil.protect(function() suspend() return 1, nil, 3 end) })
  end)

  spec("holds a cancellation back until its function has returned (PR-01)",
    function()
      local steps = {}
      local co = started(function()
        vigil.protect(function()
          for i = 1, 3 do
            sleep(0.001)
            steps[#steps + 1] = i
          end
        end)
        steps[#steps + 1] = "after"
      end)
      co:cancel("held")
      local ok, err = pawait(co)
      assert.is_false(ok)
      assert.equal("held", err.message)
      assert.same({ 1, 2, 3 }, steps)
    end)

  spec("is raised from protect itself, with no wait after it (PR-01)",
    function()
      local co = started(function()
        vigil.protect(suspend)
        return "not reached"
      end)
      co:cancel()
      assert.is_false((pawait(co)))
    end)

  spec("twice in a row: what is between does not run (PR-03)", function()
    local between, second = false, false
    local co = started(function()
      vigil.protect(suspend)
      between = true
      vigil.protect(function() second = true end)
    end)
    co:cancel()
    pawait(co)
    assert.is_false(between)
    assert.is_false(second)
  end)

  spec("an error inside propagates; the cancellation comes next (PR-04)",
    function()
      local first, second
      local co = started(function()
        local _
        _, first = pcall(vigil.protect, function()
          suspend()
          error("inside", 0)
        end)
        _, second = pcall(suspend)
      end)
      co:cancel()
      await(co)
      assert.equal("inside", first)
      assert_kind("cancelled", second)
    end)

  spec("meanwhile it is requested but not cancelled (PR-06)", function()
    local co = started(function()
      vigil.protect(function() sleep(0.01) end)
    end)
    co:cancel()
    suspend()
    assert.is_true(co:cancel_requested())
    assert.equal("suspended", co.state)
    pawait(co)
    assert.equal("cancelled", co.state)
  end)

  spec("does not hold back a token (PR-07)", function()
    local future = vigil.future()
    local ok, err = pcall(vigil.protect, function()
      await(future, 0.001)
    end)
    assert.is_false(ok)
    assert_kind("timeout", err)
  end)

  spec("does not hold back a with_timeout inside it", function()
    local ok, err = pcall(vigil.protect, function()
      vigil.with_timeout(0.001, sleep, 10)
    end)
    assert.is_false(ok)
    assert_kind("timeout", err)
  end)

  spec("holds back a with_timeout around it", function()
    local finished = false
    local ok, err = pcall(vigil.with_timeout, 0.001, function()
      vigil.protect(function()
        sleep(0.01)
        finished = true
      end)
    end)
    assert.is_true(finished)
    assert.is_false(ok)
    assert_kind("timeout", err)
  end)

  spec("nested counts: leaving the inner one raises nothing", function()
    local steps = {}
    local co = started(function()
      vigil.protect(function()
        vigil.protect(suspend)
        steps[#steps + 1] = "between"
        sleep(0.001)
        steps[#steps + 1] = "waited"
      end)
      steps[#steps + 1] = "after"
    end)
    co:cancel()
    pawait(co)
    assert.same({ "between", "waited" }, steps)
  end)

  spec("lets a cancelled coroutine wait to clean up (R44)", function()
    local cleaned = false
    local co = started(function()
      pcall(sleep, 10)
      vigil.protect(function()
        sleep(0.005)
        cleaned = true
      end)
    end)
    co:cancel()
    pawait(co)
    assert.is_true(cleaned)
  end)

  spec("raises again after a clean-up that waited (R38)", function()
    local co = started(function()
      pcall(sleep, 10)
      vigil.protect(suspend)
      sleep(10)
    end)
    co:cancel()
    pawait(co)
    assert.equal("cancelled", co.state)
  end)

  spec("with a limit is lifted when its time is over (R44)", function()
    local before = vigil.now()
    local inner
    local co = started(function()
      vigil.protect(function()
        local _, err = pcall(sleep, 10)
        inner = err
      end, 0.01)
    end)
    co:cancel("limit")
    pawait(co)
    assert_kind("cancelled", inner)
    assert.equal("limit", inner.message)
    assert.is_true(vigil.now() - before < 1)
  end)

  spec("with a limit does nothing without a cancellation", function()
    assert.equal("fine", vigil.protect(function()
      sleep(0.005)
      return "fine"
    end, 0.001))
  end)

  spec("with a limit leaves no timer", function()
    local before = core.counts().timers
    vigil.protect(function() end, 10)
    assert.equal(before, core.counts().timers)
  end)

  spec("a cancellation before it does not stop it from running", function()
    local ran = false
    cancelled(function()
      vigil.protect(function() ran = true end)
    end)
    assert.is_true(ran)
  end)

  it("in the main chunk just calls (PR-01)", function()
    assert.equal(1, vigil.protect(function() sleep(0.001) return 1 end))
  end)

  spec("refuses what is not a function", function()
    local ok, err = pcall(vigil.protect, 5)
    assert.is_false(ok)
    assert.matches("function expected", err)
  end)

  spec("refuses a negative limit by name (R70)", function()
    local _, err = pcall(vigil.protect, function() end, -1)
    assert.matches("seconds", err)
  end)
end)

describe("with_timeout", function()
  spec("raises an error of kind timeout", function()
    local ok, err = pcall(vigil.with_timeout, 0.001, sleep, 10)
    assert.is_false(ok)
    assert.equal("timeout", err.kind)
    assert.equal("ETIMEDOUT", err.code)
  end)

  spec("returns the results in time", function()
    assert.same({ 1, nil, 3 }, { vigil.with_timeout(1, function(...)
      suspend()
      return ...
    end, 1, nil, 3) })
  end)

  spec("passes an error through unchanged", function()
    local value = {}
    local ok, err = pcall(vigil.with_timeout, 1, error, value)
    assert.is_false(ok)
    assert.equal(value, err)
  end)

  spec("cancels only what is inside: leaving it ends the state", function()
    pcall(vigil.with_timeout, 0.001, sleep, 10)
    sleep(0.001)
    assert.is_false(vigil.current():cancel_requested())
  end)

  spec("is a state inside: pcall does not end it (R38)", function()
    local errors = {}
    pcall(vigil.with_timeout, 0.001, function()
      for i = 1, 3 do
        local _, err = pcall(sleep, 10)
        errors[i] = err
      end
    end)
    assert_kind("timeout", errors[1])
    assert.equal(errors[1], errors[3])
  end)

  spec("gives the results of a function that returns after it fired",
    function()
      assert.equal("late", vigil.with_timeout(0.001, function()
        pcall(sleep, 10)
        return "late"
      end))
    end)

  spec("does not stop a function that never waits", function()
    assert.equal("done", vigil.with_timeout(0, function()
      return "done"
    end))
  end)

  spec("nested: the outer one fires through the inner one", function()
    local inner
    local ok, err = pcall(vigil.with_timeout, 0.001, function()
      local _
      _, inner = pcall(vigil.with_timeout, 10, sleep, 10)
      sleep(10)
    end)
    assert.is_false(ok)
    assert_kind("timeout", err)
    assert.equal(inner, err)
  end)

  spec("nested: the inner one ends only the inner block", function()
    local inner
    local result = vigil.with_timeout(1, function()
      local _
      _, inner = pcall(vigil.with_timeout, 0.001, sleep, 10)
      sleep(0.001)
      return "outer goes on"
    end)
    assert.equal("outer goes on", result)
    assert_kind("timeout", inner)
  end)

  spec("nested: with both over, the outer one is the one reported",
    function()
      local first, second
      local ok, err = pcall(vigil.with_timeout, 0.001, function()
        local _
        _, first = pcall(vigil.with_timeout, 0.001, function()
          local stop = vigil.now() + 0.003
          while vigil.now() < stop do end
          sleep(10)
        end)
        _, second = pcall(sleep, 10)
        error(second, 0)
      end)
      assert.is_false(ok)
      assert.equal(first, second)
      assert.equal(second, err)
    end)

  spec("under an own cancellation raises the cancellation", function()
    local ok, err = cancelled(function()
      vigil.with_timeout(0, sleep, 10)
    end)
    assert.is_false(ok)
    assert_kind("cancelled", err)
  end)

  spec("that has fired gives way to a cancellation that follows", function()
    local second
    local co = started(function()
      vigil.with_timeout(0.001, function()
        pcall(sleep, 10)
        cancel_me("own")
        local _, err = pcall(sleep, 10)
        second = err
      end)
    end)
    pawait(co)
    assert.equal("own", second.message)
  end)

  spec("of 0 lets through what need not wait: send (R30)", function()
    local ch = vigil.channel(1)
    vigil.with_timeout(0, function() ch:send("x") end)
    assert.equal(1, #ch)
  end)

  spec("of 0 lets through what need not wait: recv (R30)", function()
    local ch = vigil.channel(1)
    ch:send("x")
    assert.equal("x", vigil.with_timeout(0, function()
      return ch:recv()
    end))
  end)

  spec("of 0 fires where it must wait (R30)", function()
    local ch = vigil.channel()
    local before = vigil.now()
    local ok, err = pcall(vigil.with_timeout, 0, function() ch:recv() end)
    assert.is_false(ok)
    assert_kind("timeout", err)
    assert.is_true(vigil.now() - before < 0.2)
  end)

  spec("of math.huge never fires", function()
    assert.equal(1, vigil.with_timeout(math.huge, function()
      sleep(0.001)
      return 1
    end))
  end)

  spec("leaves no timer when it is left early (R128)", function()
    local before = core.counts().timers
    vigil.with_timeout(3600, suspend)
    pcall(vigil.with_timeout, 3600, error, "x")
    assert.equal(before, core.counts().timers)
  end)

  spec("does not reach a coroutine spawned inside", function()
    local child
    pcall(vigil.with_timeout, 0.001, function()
      child = spawn(function() sleep(0.005) return "alive" end)
      sleep(10)
    end)
    assert.equal("alive", await(child))
  end)

  it("works in the main chunk", function()
    local ok, err = pcall(vigil.with_timeout, 0.001, sleep, 10)
    assert.is_false(ok)
    assert_kind("timeout", err)
    sleep(0.001)
  end)

  spec("hundreds deep all end", function()
    local function nest(n)
      if n == 0 then return sleep(10) end
      return vigil.with_timeout(5 + n, nest, n - 1)
    end
    local ok, err = pcall(vigil.with_timeout, 0.001, nest, 150)
    assert.is_false(ok)
    assert_kind("timeout", err)
  end)

  for name, bad in pairs { ["a negative number"] = -1, NaN = 0 / 0,
    ["a string"] = "5", ["a boolean"] = true } do
    spec("refuses " .. name .. " by name (R70)", function()
      local ok, err = pcall(vigil.with_timeout, bad, function() end)
      assert.is_false(ok)
      assert.matches("seconds", err)
    end)
  end
end)

describe("<close> variables of a cancelled coroutine", function()
  local function closing(fn)
    return setmetatable({}, { __close = function(_, err) fn(err) end })
  end

  spec("close in reverse order, each with the error (R37)", function()
    local order = {}
    local co = started(function()
      local a <close> = closing(function(err) order[#order + 1] = { 1, err } end)
      local b <close> = closing(function(err) order[#order + 1] = { 2, err } end)
      local c <close> = closing(function(err) order[#order + 1] = { 3, err } end)
      sleep(10)
      return a, b, c
    end)
    co:cancel("stop")
    local _, err = pawait(co)
    assert.same({ 3, 2, 1 }, { order[1][1], order[2][1], order[3][1] })
    assert.equal(err, order[1][2])
    assert.equal(err, order[3][2])
  end)

  spec("close all of them although one raises (R37)", function()
    local closed = {}
    local co = started(function()
      local a <close> = closing(function() closed[#closed + 1] = 1 end)
      local b <close> = closing(function() error("in clean-up", 0) end)
      local c <close> = closing(function() closed[#closed + 1] = 3 end)
      sleep(10)
      return a, b, c
    end)
    co:cancel()
    local ok, err = pawait(co)
    assert.is_false(ok)
    assert.equal("in clean-up", err)
    assert.same({ 3, 1 }, closed)
  end)

  spec("may wait inside protect (R37, R44)", function()
    local cleaned = false
    local co = started(function()
      local a <close> = closing(function()
        vigil.protect(function()
          sleep(0.002)
          cleaned = true
        end)
      end)
      sleep(10)
      return a
    end)
    co:cancel()
    pawait(co)
    assert.is_true(cleaned)
    assert.equal("cancelled", co.state)
  end)

  spec("that wait without protect fail with the cancellation (R37)",
    function()
      local seen
      local co = started(function()
        local a <close> = closing(function()
          local _, err = pcall(sleep, 0.001)
          seen = err
        end)
        sleep(10)
        return a
      end)
      co:cancel("stop")
      pawait(co)
      assert_kind("cancelled", seen)
    end)

  spec("do not replace a real error on its way out (R43)", function()
    local co = spawn(function()
      local a <close> = closing(function() sleep(0.001) end)
      cancel_me("too late")
      error("the real one", 0)
      return a
    end)
    local ok, err = pawait(co)
    assert.is_false(ok)
    assert.equal("the real one", err)
    assert.equal("failed", co.state)
  end)

  spec("of a with_timeout block close inside it", function()
    local seen
    local ok, err = pcall(vigil.with_timeout, 0.001, function()
      local a <close> = closing(function(cause) seen = cause end)
      sleep(10)
      return a
    end)
    assert.is_false(ok)
    assert.equal(err, seen)
    assert_kind("timeout", err)
  end)
end)

describe("awaiting a cancelled coroutine", function()
  spec("is an ordinary failure that does not stay (ruling 4)", function()
    local child = started(sleep, 10)
    child:cancel()
    assert.is_false((pcall(await, child)))
    sleep(0.001)
    assert.is_false(vigil.current():cancel_requested())
  end)

  spec("gives the same object to several awaiters (AW-28)", function()
    local child = started(sleep, 10)
    local a, b = started(pawait, child), started(pawait, child)
    child:cancel("one")
    local _, err_a = await(a)
    local _, err_b = await(b)
    assert.equal(err_a, err_b)
    assert.equal(child.error, err_a)
  end)

  spec("unawaited by a cancelled parent, the child's failure is reported "
    .. "to nobody but its scope", function()
    local child = spawn(function() sleep(0.002) return 1 end)
    local parent = started(await, child)
    parent:cancel("parent")
    local _, err = pawait(parent)
    assert.equal("parent", err.message)
    assert.equal(1, await(child))
  end)
end)
