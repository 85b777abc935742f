-- Who runs when: DESIGN 2.4, rulings 6 and 20; SEMANTICS SC, WK, GS-10;
-- FIELD-REPORTS R16, R24, R29, R34.

local core = require "vigil.core"
local helper = require "spec.helper"
local vigil = require "vigil"

local spawn, sleep, suspend = vigil.spawn, vigil.sleep, vigil.suspend
local await, pawait = vigil.await, vigil.pawait

local function spec(name, fn)
  it(name, helper.in_vigil(fn))
end

-- A list, and a function that appends to it.
local function recorder()
  local list = {}
  return list, function(value) list[#list + 1] = value end
end

describe("order", function()
  spec("spawn runs nothing at once (SC-01)", function()
    local order, note = recorder()
    note "start"
    local co = spawn(note, "coroutine")
    note "end"
    await(co)
    assert.same({ "start", "end", "coroutine" }, order)
  end)

  spec("is first in, first out (SC-02)", function()
    local order, note = recorder()
    for i = 1, 5 do spawn(note, i) end
    suspend()
    assert.same({ 1, 2, 3, 4, 5 }, order)
  end)

  spec("new and resumed ones share one queue (SC-02)", function()
    local order, note = recorder()
    local future, promise = vigil.future()
    local waiter = spawn(function()
      await(future)
      note "resumed"
    end)
    suspend()
    spawn(note, "new before")
    promise:complete()
    spawn(note, "new after")
    await(waiter)
    suspend()
    assert.same({ "new before", "resumed", "new after" }, order)
  end)

  spec("two that suspend in turn alternate (SC-04)", function()
    local order, note = recorder()
    local function loop(name)
      for i = 1, 3 do
        note(name .. i)
        suspend()
      end
    end
    vigil.await_all { spawn(loop, "a"), spawn(loop, "b") }
    assert.same({ "a1", "b1", "a2", "b2", "a3", "b3" }, order)
  end)

  spec("a suspend goes behind all that are queued (SC-04)", function()
    local order, note = recorder()
    for i = 1, 3 do spawn(note, i) end
    suspend()
    note "me"
    assert.same({ 1, 2, 3, "me" }, order)
  end)

  spec("a suspend with nothing else to run comes back (SC-04)", function()
    for _ = 1, 1000 do suspend() end
    assert.equal("running", vigil.current().state)
  end)

  spec("sleep(0) lets the others run, without a timer (SC-05)", function()
    local timers
    spawn(function() timers = core.counts().timers end)
    local before = core.counts().timers
    sleep(0)
    assert.equal(before, timers)
  end)

  spec("waiters of one event wake in order, each once (CB-01, CB-08)",
    function()
      local order, note = recorder()
      local future, promise = vigil.future()
      local list = {}
      for i = 1, 5 do
        list[i] = spawn(function()
          await(future)
          note(i)
        end)
      end
      suspend()
      promise:complete()
      vigil.await_all(list)
      assert.same({ 1, 2, 3, 4, 5 }, order)
    end)

  spec("an await of what is there lets nobody run (WK-10)", function()
    local ran = false
    local future, promise = vigil.future()
    promise:complete(1)
    spawn(function() ran = true end)
    await(future)
    assert.is_false(ran)
  end)

  spec("a finished coroutine is awaited without a switch (WK-10, EV-09)",
    function()
      local co = spawn(function() return 1 end)
      suspend()
      local ran = false
      spawn(function() ran = true end)
      assert.equal(1, await(co))
      assert.equal(1, await(co))
      assert.is_false(ran)
    end)

  spec("sleepers wake in the order of their due times", function()
    local order, note = recorder()
    local list = {}
    for i, s in ipairs { 0.009, 0.003, 0.006 } do
      list[i] = spawn(function()
        sleep(s)
        note(s)
      end)
    end
    vigil.await_all(list)
    assert.same({ 0.003, 0.006, 0.009 }, order)
  end)
end)

describe("high priority", function()
  spec("runs before those that were queued earlier", function()
    local order, note = recorder()
    spawn(note, "normal")
    spawn(note, "high"):high_priority()
    suspend()
    assert.same({ "high", "normal" }, order)
  end)

  spec("holds for each wake, not only for the first", function()
    local order, note = recorder()
    local future, promise = vigil.future()
    spawn(function()
      await(future)
      note "high"
    end):high_priority()
    suspend()
    spawn(note, "normal")
    promise:complete()
    suspend()
    assert.same({ "high", "normal" }, order)
  end)

  spec("can be taken back", function()
    local order, note = recorder()
    local future, promise = vigil.future()
    local co = spawn(function()
      await(future)
      note "was high"
    end):high_priority()
    suspend()
    co:high_priority(false)
    spawn(note, "normal")
    promise:complete()
    suspend()
    assert.same({ "normal", "was high" }, order)
  end)

  spec("still lets the others run at a suspend", function()
    local ran = false
    spawn(function() ran = true end)
    local rounds = 0
    await(spawn(function()
      while not ran and rounds < 1000 do
        rounds = rounds + 1
        suspend()
      end
    end):high_priority())
    assert.is_true(ran)
    assert.is_true(rounds <= 1)
  end)

  spec("still lets the others run while its waits are all ready", function()
    local ran = false
    local future, promise = vigil.future()
    promise:complete(1)
    spawn(function() ran = true end)
    await(spawn(function()
      for _ = 1, 300 do await(future) end
      assert.is_true(ran)
    end):high_priority())
  end)
end)

describe("fairness", function()
  spec("after 128 ready waits in a row the others get a turn (ruling 6)",
    function()
      local future, promise = vigil.future()
      promise:complete(1)
      local ran = false
      spawn(function() ran = true end)
      for _ = 1, 127 do await(future) end
      assert.is_false(ran)
      for _ = 1, 2 do await(future) end
      assert.is_true(ran)
    end)

  spec("a coroutine that loops on suspend does not starve a timer (R34)",
    function()
      local done = false
      spawn(function()
        sleep(0.005)
        done = true
      end)
      local stop = vigil.now() + 1
      while not done and vigil.now() < stop do suspend() end
      assert.is_true(done)
    end)

  spec("always-ready channel and future leave a ticker its ticks (R34)",
    function()
      local stop = vigil.now() + 0.2
      local ticks = 0
      local future, promise = vigil.future()
      promise:complete(1)
      local ch = vigil.channel(1)
      local list = {
        spawn(function() while vigil.now() < stop do await(future) end end),
        spawn(function()
          while vigil.now() < stop do
            ch:send(1)
            ch:recv()
          end
        end),
        spawn(function()
          local timer = vigil.timer(0.01, 0.01)
          while vigil.now() < stop do
            await(timer)
            ticks = ticks + 1
          end
        end),
      }
      vigil.await_all_or_fail(list)
      assert.is_true(ticks >= 12, ticks .. " ticks")
    end)

  spec("ten equal coroutines are served alike (R34)", function()
    local stop = vigil.now() + 0.05
    local counts, list = {}, {}
    local future, promise = vigil.future()
    promise:complete(1)
    for i = 1, 10 do
      counts[i] = 0
      list[i] = spawn(function()
        while vigil.now() < stop do
          await(future)
          counts[i] = counts[i] + 1
        end
      end)
    end
    vigil.await_all_or_fail(list)
    local least, most = math.min(table.unpack(counts)),
      math.max(table.unpack(counts))
    assert.is_true(most < 3 * least, least .. " to " .. most)
  end)

  spec("100,000 queued coroutines delay a 1 ms timer by one round at most",
    function()
      local round, due_round, woke_round = 0, nil, nil
      local due
      spawn(function()
        while not woke_round do
          round = round + 1
          if not due_round and due and vigil.now() >= due then
            due_round = round
          end
          suspend()
        end
      end)
      for _ = 1, 100000 do
        spawn(function()
          while not woke_round do suspend() end
        end)
      end
      due = vigil.now() + 0.001
      sleep(0.001)
      woke_round = round
      assert.is_true(woke_round - (due_round or woke_round) <= 1)
    end)
end)

describe("awaits that are ready at once", function()
  local Sync = {}
  Sync.__index = Sync
  function Sync:__await(waker) waker:resolve(self.value, "more") end

  spec("deliver values resolved inside __await (R24)", function()
    assert.same({ 5, "more" },
      { await(setmetatable({ value = 5 }, Sync)) })
  end)

  spec("100,000 in a row, and the others still get turns (R24)", function()
    local turns, stop = 0, false
    spawn(function()
      while not stop do
        turns = turns + 1
        suspend()
      end
    end)
    local source = setmetatable({ value = 0 }, Sync)
    local sum = 0
    for i = 1, 100000 do
      source.value = i
      sum = sum + await(source)
    end
    stop = true
    assert.equal(5000050000, sum)
    assert.is_true(turns >= 100000 // 128, turns .. " turns")
  end)
end)

describe("run", function()
  it("returns what its function returns", function()
    assert.same({ 1, nil, 3 }, { vigil.run(function()
      suspend()
      return 1, nil, 3
    end) })
  end)

  it("passes its arguments on", function()
    assert.same({ 4, 1, nil, nil, "x" }, { vigil.run(function(...)
      return select("#", ...), ...
    end, 1, nil, nil, "x") })
  end)

  it("passes hundreds of arguments and results on", function()
    local list = {}
    for i = 1, 200 do list[i] = i end
    assert.same(list, { vigil.run(function(...)
      return table.unpack({ await(spawn(function(...)
        suspend()
        return ...
      end, ...)) })
    end, table.unpack(list)) })
  end)

  it("waits for every coroutine (SC-07)", function()
    local ended = false
    vigil.run(function()
      spawn(function()
        sleep(0.005)
        ended = true
      end)
    end)
    assert.is_true(ended)
  end)

  it("waits for coroutines spawned by others (SC-07)", function()
    local depth = 0
    local function go(n)
      depth = n
      if n < 50 then spawn(go, n + 1) end
    end
    vigil.run(go, 1)
    assert.equal(50, depth)
  end)

  it("runs coroutines that were spawned before it", function()
    local ran = false
    spawn(function() ran = true end)
    vigil.run(function() end)
    assert.is_true(ran)
  end)

  it("raises the error of its function", function()
    local value = {}
    local ok, err = pcall(vigil.run, function() error(value) end)
    assert.is_false(ok)
    assert.equal(value, err)
  end)

  it("works twice (GS-10)", function()
    assert.equal(1, vigil.run(function() sleep(0.001) return 1 end))
    assert.equal(2, vigil.run(function() sleep(0.001) return 2 end))
  end)

  it("works again after it failed (R16, GS-10)", function()
    assert.is_false((pcall(vigil.run, function()
      for i = 1, 50 do spawn(sleep, i / 10000) end
      spawn(error, "boom")
      sleep(1)
    end)))
    assert.equal("fine", vigil.run(function()
      sleep(0.001)
      return "fine"
    end))
  end)

  it("leaves objects of a failed run usable in the next one (R16)",
    function()
      local ch, timers = vigil.channel(), {}
      pcall(vigil.run, function()
        for i = 1, 50 do
          timers[i] = vigil.timer(0.001)
          spawn(await, timers[i])
        end
        spawn(ch.recv, ch)
        spawn(error, "boom")
        sleep(1)
      end)
      vigil.run(function()
        for i = 1, 50 do timers[i]:close() end
        spawn(function() ch:send("still") end)
        assert.equal("still", ch:recv())
      end)
    end)

  spec("inside a coroutine is refused", function()
    local ok, err = pcall(vigil.run, function() end)
    assert.is_false(ok)
    assert.matches("already running", err)
  end)

  spec("refused leaves the outer run as it was", function()
    pcall(vigil.run, function() end)
    assert.equal(1, await(spawn(function() suspend() return 1 end)))
  end)

  it("works inside a plain coroutine", function()
    local step = coroutine.wrap(function()
      coroutine.yield(vigil.run(function()
        sleep(0.001)
        return await(spawn(function() suspend() return "inner" end))
      end))
      return "outer"
    end)
    assert.equal("inner", step())
    assert.equal("outer", step())
  end)

  it("works where Lua cannot yield", function()
    assert.equal("b", (string.gsub("a", "a", function()
      return vigil.run(function()
        sleep(0.001)
        return "b"
      end)
    end)))
  end)

  it("refuses what is not a function", function()
    local ok, err = pcall(vigil.run, 5)
    assert.is_false(ok)
    assert.matches("function expected", err)
  end)

  it("does not wait for timers nobody waits for (GS-09, ruling 17)",
    function()
      local before = vigil.now()
      vigil.run(function()
        vigil.timer(10)
        vigil.timer(10, 10)
        vigil.timeout(10)
      end)
      assert.is_true(vigil.now() - before < 1)
    end)

  it("does not burn the processor while it waits (SC-10)", function()
    local before = os.clock()
    vigil.run(sleep, 0.15)
    assert.is_true(os.clock() - before < 0.05)
  end)
end)

describe("the main chunk", function()
  it("may await: it drives the loop (SC-06)", function()
    assert.same({ 1, 2 }, { await(spawn(function()
      sleep(0.001)
      return 1, 2
    end)) })
  end)

  it("may sleep", function()
    local before = vigil.now()
    sleep(0.005)
    assert.is_true(vigil.now() - before >= 0.005)
  end)

  it("may suspend: what is queued runs", function()
    local ran = false
    spawn(function() ran = true end)
    suspend()
    assert.is_true(ran)
  end)

  it("may use channels, select and pawait", function()
    local ch = vigil.channel()
    spawn(function()
      ch:send("a")
      ch:send("b")
    end)
    assert.equal("a", ch:recv())
    assert.same({ 1, "b" }, { vigil.select { ch:receiving() } })
    assert.same({ false, "c" }, { pawait(spawn(error, "c")) })
  end)

  it("may wait with a token", function()
    local ok, err = pawait(vigil.future(), 0.001)
    assert.is_false(ok)
    assert.is_true(vigil.is_error(err, "timeout"))
  end)

  it("goes on while others still wait, and they go on later", function()
    local co = spawn(function()
      sleep(0.01)
      return "later"
    end)
    sleep(0.001)
    assert.equal("suspended", co.state)
    assert.equal("later", await(co))
  end)

  it("gets the error that nobody awaited from its wait (R15)", function()
    spawn(error, "lost")
    local ok, err = pcall(sleep, 1)
    assert.is_false(ok)
    assert.equal("lost", err)
    sleep(0.001) -- once only
  end)

  it("gets it although its own wait had its result already (R15)",
    function()
      local co = spawn(function() return 1 end)
      spawn(error, "lost")
      local ok, err = pcall(await, co)
      assert.is_false(ok)
      assert.equal("lost", err)
      assert.equal(1, await(co))
    end)

  it("loses no value that it was handed when such an error comes (R15)",
    function()
      local ch = vigil.channel()
      spawn(ch.send, ch, "value")
      spawn(error, "lost")
      assert.is_false((pcall(ch.recv, ch)))
      assert.equal("value", ch:recv())
    end)

  it("and a cancelled receiver lose no value to such an error (R15)",
    function()
      local ch = vigil.channel()
      local co = spawn(ch.recv, ch)
      suspend()
      spawn(ch.send, ch, "value")
      spawn(error, "lost")
      assert.is_false((pcall(ch.recv, ch)))
      assert.equal("value", ch:recv())
      assert.equal("cancelled", co.state)
    end)

  it("gets an error that came in a turn for the others (R15, ruling 6)",
    function()
      local future, promise = vigil.future()
      promise:complete(1)
      spawn(error, "lost")
      local ok, err = pcall(function()
        for _ = 1, 300 do await(future) end
      end)
      assert.is_false(ok)
      assert.equal("lost", err)
    end)

  it("that does not wait again has it on stderr at the end (R15)",
    function()
      local _, _, err = helper.run_script [[
        local vigil = require "vigil"
        local future, promise = vigil.future()
        promise:complete(1)
        vigil.spawn(error, "lost")
        for _ = 1, 128 do vigil.await(future) end
      ]]
      assert.matches("unhandled error", err)
      assert.matches("lost", err)
    end)

  it("has no coroutine of its own (ruling 12)", function()
    assert.is_nil(vigil.current())
  end)

  it("may wait between two runs and after them", function()
    vigil.run(function() end)
    assert.equal(1, await(spawn(function() return 1 end)))
    vigil.run(function() end)
    assert.equal(2, await(spawn(function() return 2 end)))
  end)

  it("may wait below a C function", function()
    assert.equal("x", (string.gsub("a", "a", function()
      return await(spawn(function() suspend() return "x" end))
    end)))
  end)

  it("that leaves coroutines unrun is told so (DESIGN 3)", function()
    local code, _, err = helper.run_script [[
      warn "@on"
      local vigil = require "vigil"
      vigil.spawn(print, "never")
      vigil.spawn(print, "never")
    ]]
    assert.equal(0, code)
    assert.matches("2 coroutine", err)
    assert.matches("vigil%.run", err)
  end)
end)

describe("current and coroutines", function()
  spec("current is the running coroutine", function()
    local inside
    local co = spawn(function() inside = vigil.current() end)
    await(co)
    assert.equal(co, inside)
  end)

  spec("current stays the same across waits", function()
    local co
    co = spawn(function()
      assert.equal(co, vigil.current())
      suspend()
      assert.equal(co, vigil.current())
      sleep(0.001)
      assert.equal(co, vigil.current())
    end)
    await(co)
  end)

  spec("coroutines lists those that have not ended", function()
    local a, b = spawn(suspend), spawn(suspend)
    local set = {}
    for _, co in ipairs(vigil.coroutines()) do set[co] = true end
    assert.is_true(set[a] and set[b] and set[vigil.current()])
    vigil.await_all { a, b }
    assert.equal(1, #vigil.coroutines())
  end)

  it("now does not go back", function()
    local last = vigil.now()
    for _ = 1, 1000 do
      local now = vigil.now()
      assert.is_true(now >= last)
      last = now
    end
  end)
end)

describe("spawn", function()
  spec("passes arguments with holes", function()
    assert.same({ 3, nil, nil, 1 }, { await(spawn(function(...)
      return select("#", ...), ...
    end, nil, nil, 1)) })
  end)

  spec("refuses what is not a function", function()
    local ok, err = pcall(spawn, "no")
    assert.is_false(ok)
    assert.matches("function expected", err)
  end)

  spec("takes a C function", function()
    assert.equal("ABC", await(spawn(string.upper, "abc")))
  end)

  spec("takes more arguments than fit a C stack frame", function()
    local list = table.move({ 0 }, 1, 1, 1)
    for i = 1, 5000 do list[i] = i end
    assert.equal(5000, await(spawn(function(...)
      return (select("#", ...))
    end, table.unpack(list))))
  end)
end)

describe("depth", function()
  spec("10,000 waiters of one lock run one after another (R29)", function()
    local lock, inside, served = vigil.channel(1), 0, 0
    local list = {}
    for i = 1, 10000 do
      list[i] = spawn(function()
        lock:send(true)
        inside = inside + 1
        assert(inside == 1)
        suspend()
        inside = inside - 1
        served = served + 1
        lock:recv()
      end)
    end
    vigil.await_all_or_fail(list)
    assert.equal(10000, served)
  end)

  spec("a chain of 10,000 awaits unwinds (R29)", function()
    local function link(n)
      if n == 0 then return "end" end
      return await(spawn(link, n - 1))
    end
    assert.equal("end", link(10000))
  end)

  spec("too deep a nest of coroutines fails in its coroutine only (R29)",
    function()
      local function nest() return vigil.coroutine.wrap(nest)() end
      local ok, err = pawait(spawn(nest))
      assert.is_false(ok)
      assert.matches("stack overflow", tostring(err))
      sleep(0.001)
    end)

  spec("endless recursion fails in its coroutine only (GS-11)", function()
    local function endless() return 1 + endless() end
    local ok, err = pawait(spawn(endless))
    assert.is_false(ok)
    assert.matches("stack overflow", tostring(err))
    assert.equal(1, await(spawn(function() suspend() return 1 end)))
  end)
end)
