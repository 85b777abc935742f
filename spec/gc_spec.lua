-- Memory: DESIGN 2.5, 2.7, ruling 11; SEMANTICS GC; FIELD-REPORTS theme P.

local core = require "vigil.core"
local helper = require "spec.helper"
local vigil = require "vigil"

local spawn, sleep, suspend = vigil.spawn, vigil.sleep, vigil.suspend
local await, pawait = vigil.await, vigil.pawait

local function spec(name, fn)
  it(name, helper.in_vigil(fn))
end

local function collect()
  collectgarbage()
  collectgarbage()
end

-- What make() returns, and only that, is referenced weakly: whether it is
-- still there after a collection.
local function survives(make)
  local weak = setmetatable({}, { __mode = "k" })
  do
    local object = make()
    assert(object ~= nil)
    weak[object] = true
  end
  await(spawn(function() end)) -- no trace of it on a stack
  collect()
  return next(weak) ~= nil
end

local function kilobytes()
  collect()
  return collectgarbage("count")
end

-- work(n) must leave no more memory behind for many rounds than for few.  A
-- table may be resized on the way, once; a leak grows each time.
local function flat(rounds, work)
  work(rounds // 10 + 1)
  local lua, c, lua_after, c_after
  for _ = 1, 3 do
    lua, c = kilobytes(), core.bytes()
    work(rounds)
    lua_after, c_after = kilobytes(), core.bytes()
    if lua_after - lua < 16 and c_after - c < 16384 then return end
  end
  error(("Lua: %.1f KiB before, %.1f after; C: %d bytes before, %d after")
    :format(lua, lua_after, c, c_after), 0)
end

describe("is collected:", function()
  local function gone(name, make)
    spec(name, function() assert.is_false(survives(make)) end)
  end

  gone("a coroutine after its end (GC-09)", function()
    local co = spawn(function() return 1 end)
    await(co)
    return co
  end)

  gone("a failed coroutine", function()
    local co = spawn(error, {})
    pawait(co)
    return co
  end)

  gone("a cancelled coroutine", function()
    local co = spawn(sleep, 10)
    suspend()
    co:cancel()
    pawait(co)
    return co
  end)

  gone("a coroutine cancelled before its start", function()
    local co = spawn(sleep, 10)
    co:cancel()
    pawait(co)
    return co
  end)

  gone("a coroutine that yielded out of its body", function()
    local co = spawn(function() coroutine.yield() end)
    pawait(co)
    return co
  end)

  gone("what its body had in locals (GC-05)", function()
    local t = {}
    await(spawn(function()
      local kept = t
      suspend()
      return #kept
    end))
    return t
  end)

  gone("its function and arguments", function()
    local t = {}
    local function body(...) return select("#", ..., t) end
    await(spawn(body, t))
    return body
  end)

  gone("its result, with it", function()
    local t = {}
    await(spawn(function() return t, t end))
    return t
  end)

  gone("its error, with it", function()
    local t = {}
    pawait(spawn(error, t))
    return t
  end)

  gone("the values of a generator's thread", function()
    local t = {}
    await(spawn(function()
      local step = vigil.coroutine.wrap(function()
        local kept = t
        suspend()
        vigil.coroutine.yield(kept)
      end)
      step()
    end))
    return t
  end)

  gone("a coroutine whose result is itself (GC-04)", function()
    local co
    co = spawn(function() return co, co end)
    await(co)
    return co
  end)

  gone("a coroutine whose finally handler knows it (GC-04)", function()
    local co = spawn(function() end)
    co:finally(function() return co end)
    await(co)
    suspend()
    return co
  end)

  gone("a coroutine whose error knows it (GC-04)", function()
    local co
    co = spawn(function() error { co } end)
    pawait(co)
    return co
  end)

  gone("a coroutine whose cancellation knows it (GC-04)", function()
    local co = spawn(sleep, 10)
    suspend()
    co:cancel()
    local _, err = pawait(co)
    err.co = co
    return co
  end)

  gone("a channel that holds itself (GC-04)", function()
    local ch = vigil.channel(4)
    ch:send(ch)
    ch:send { ch }
    return ch
  end)

  gone("a future whose value is itself (GC-04)", function()
    local future, promise = vigil.future()
    promise:complete { future, promise }
    return future
  end)

  gone("a pending future and its promise", function()
    return (vigil.future())
  end)

  gone("a future with stages that know it (GC-04)", function()
    local future, promise = vigil.future()
    local mapped = future:map(function() return future end)
    promise:complete(1)
    await(mapped)
    suspend()
    return future
  end)

  gone("a future that many waited for", function()
    local future, promise = vigil.future()
    local list = {}
    for i = 1, 20 do list[i] = spawn(await, future) end
    suspend()
    promise:complete(1)
    vigil.await_all(list)
    return future
  end)

  gone("a future whose waiters were cancelled", function()
    local future = vigil.future()
    local list = {}
    for i = 1, 20 do list[i] = spawn(await, future) end
    suspend()
    for i = 1, 20 do list[i]:cancel() end
    vigil.await_all(list)
    return future
  end)

  gone("a channel whose receivers were cancelled", function()
    local ch = vigil.channel()
    local co = spawn(ch.recv, ch)
    suspend()
    co:cancel()
    pawait(co)
    return ch
  end)

  gone("a value sent through a channel", function()
    local ch, t = vigil.channel(), {}
    local co = spawn(function() ch:recv() end)
    suspend()
    ch:send(t)
    await(co)
    return t
  end)

  gone("a timer nobody waits for", function() return vigil.timer(10, 10) end)

  gone("the token of a wait that is over", function()
    local token = vigil.timeout(10)
    local future, promise = vigil.future()
    spawn(promise.complete, promise)
    await(future, token)
    return token
  end)

  gone("the losers of a select", function()
    local a, b = vigil.channel(), vigil.future()
    local timer = vigil.timer(0.001)
    vigil.select { a:receiving(), b, timer }
    return a
  end)

  gone("an awaitable of the program's own", function()
    local source = setmetatable({}, { __await = function(self, waker)
      waker:on_cancel(function() return self end)
      spawn(function() waker:resolve(self) end)
    end })
    await(source)
    return source
  end)

end)

describe("is kept:", function()
  spec("a parked coroutine that nobody refers to (GC-05)", function()
    local done = false
    spawn(function()
      sleep(0.003)
      done = true
    end)
    suspend()
    collect()
    sleep(0.01)
    assert.is_true(done)
  end)

  spec("the locals of a parked coroutine (GC-05)", function()
    local weak = setmetatable({}, { __mode = "k" })
    local co = spawn(function()
      local t = {}
      weak[t] = true
      sleep(0.003)
      return t
    end)
    suspend()
    collect()
    assert.is_not_nil(next(weak))
    await(co)
  end)

  spec("a queued coroutine, with its arguments", function()
    local got
    spawn(function(t) got = t[1] end, { "argument" })
    collect()
    suspend()
    assert.equal("argument", got)
  end)

  spec("what a parked coroutine waits for", function()
    local promise
    local co = spawn(function()
      local future
      future, promise = vigil.future()
      return await(future)
    end)
    suspend()
    collect()
    promise:complete("value")
    assert.equal("value", await(co))
  end)

  spec("a generator that waits, with all between", function()
    local co = spawn(function()
      return vigil.coroutine.wrap(function()
        return vigil.coroutine.wrap(function()
          sleep(0.002)
          return "deep"
        end)()
      end)()
    end)
    suspend()
    collect()
    assert.equal("deep", await(co))
  end)

  spec("the value on its way to a receiver", function()
    local ch = vigil.channel()
    local co = spawn(function() return ch:recv() end)
    suspend()
    ch:send { "value" }
    collect()
    assert.equal("value", await(co)[1])
  end)

  spec("the value of a parked sender", function()
    local ch = vigil.channel()
    spawn(function() ch:send { "value" } end)
    suspend()
    collect()
    assert.equal("value", ch:recv()[1])
  end)

  spec("the error of a cancellation that has not arrived", function()
    local co = spawn(sleep, 10)
    suspend()
    co:cancel("kept")
    collect()
    local _, err = pawait(co)
    assert.equal("kept", err.message)
  end)
end)

describe("memory is flat over", function()
  it("10,000 spawns (GC-09)", function()
    flat(10000, function(n)
      vigil.run(function()
        for _ = 1, n do await(spawn(function() end)) end
      end)
    end)
  end)

  it("10,000 spawns, 500 at a time (SC-11)", function()
    flat(10000, function(n)
      for _ = 1, n // 500 do
        vigil.run(function()
          for _ = 1, 500 do spawn(suspend) end
        end)
      end
    end)
  end)

  it("failures", function()
    flat(5000, function(n)
      vigil.run(function()
        for _ = 1, n do pawait(spawn(error, "x")) end
      end)
    end)
  end)

  it("cancellations", function()
    flat(5000, function(n)
      vigil.run(function()
        for _ = 1, n do
          local co = spawn(sleep, 10)
          suspend()
          co:cancel()
          pawait(co)
        end
      end)
    end)
  end)

  it("sleeps and timeouts (R128)", function()
    flat(3000, function(n)
      vigil.run(function()
        for _ = 1, n do
          pawait((vigil.future()), 0)
          vigil.with_timeout(10, suspend)
          pcall(vigil.with_timeout, 0, suspend)
        end
      end)
    end)
  end)

  it("channels", function()
    flat(5000, function(n)
      vigil.run(function()
        for _ = 1, n do
          local ch = vigil.channel(1)
          spawn(function() for i = 1, 3 do ch:send(i) end ch:close() end)
          for _ in ch do end
        end
      end)
    end)
  end)

  it("futures with several waiters and stages", function()
    flat(2000, function(n)
      vigil.run(function()
        for _ = 1, n do
          local future, promise = vigil.future()
          local mapped = future:map(function(x) return x end)
          local list = { spawn(await, future), spawn(await, mapped),
            spawn(await, future) }
          suspend()
          promise:complete(1)
          vigil.await_all_or_fail(list)
        end
      end)
    end)
  end)

  it("futures dropped with waiters that were cancelled", function()
    flat(1000, function(n)
      vigil.run(function()
        for _ = 1, n do
          local future = vigil.future()
          local list = {}
          for i = 1, 6 do list[i] = spawn(await, future) end
          suspend()
          for i = 1, 6 do list[i]:cancel() end
          vigil.await_all(list)
        end
      end)
    end)
  end)

  it("selects with many cases", function()
    flat(2000, function(n)
      vigil.run(function()
        local chs = {}
        for i = 1, 8 do chs[i] = vigil.channel() end
        for i = 1, n do
          local ch = chs[i % 8 + 1]
          spawn(ch.send, ch, i)
          local cases = {}
          for k = 1, 8 do cases[k] = chs[k]:receiving() end
          vigil.select(cases)
        end
      end)
    end)
  end)

  it("generators that wait", function()
    flat(3000, function(n)
      vigil.run(function()
        for _ = 1, n do
          local step = vigil.coroutine.wrap(function()
            suspend()
            vigil.coroutine.yield(1)
          end)
          step()
        end
      end)
    end)
  end)

  it("blocks abandoned in generators", function()
    flat(2000, function(n)
      vigil.run(function()
        for _ = 1, n do
          local step = vigil.coroutine.wrap(function()
            vigil.with_timeout(3600, vigil.coroutine.yield)
          end)
          step()
        end
        collect()
      end)
    end)
  end)

  it("iterate", function()
    flat(1000, function(n)
      vigil.run(function()
        for _ = 1, n do
          vigil.iterate({ 1, 2, 3 }, suspend, { concurrency = 2 })
        end
      end)
    end)
  end)

  it("runs", function()
    flat(3000, function(n)
      for _ = 1, n do vigil.run(suspend) end
    end)
  end)

  it("runs that fail", function()
    flat(1000, function(n)
      for _ = 1, n do
        pcall(vigil.run, function()
          spawn(error, "x")
          sleep(10)
        end)
      end
    end)
  end)

  it("runs that deadlock", function()
    vigil.configure { warnings = false }
    flat(1000, function(n)
      for _ = 1, n do
        pcall(vigil.run, function() await((vigil.future())) end)
      end
    end)
    vigil.configure { warnings = true }
  end)

  it("distinct chunks that spawn", function()
    flat(1000, function(n)
      vigil.run(function()
        for i = 1, n do
          load("return (...).spawn(function() end)", "=chunk" .. i % 50)(
            vigil)
          suspend()
        end
      end)
    end)
  end)
end)

describe("finalizers", function()
  spec("may spawn a coroutine that waits (GC-01)", function()
    local done = false
    do
      setmetatable({}, { __gc = function()
        spawn(function()
          sleep(0.001)
          done = true
        end)
      end })
    end
    collect()
    sleep(0.01)
    assert.is_true(done)
  end)

  spec("all run, although the work of each waits (GC-02)", function()
    local done = 0
    for _ = 1, 20 do
      setmetatable({}, { __gc = function()
        spawn(function()
          suspend()
          done = done + 1
        end)
      end })
    end
    collect()
    sleep(0.005)
    assert.equal(20, done)
  end)

  spec("may complete a promise, send and cancel", function()
    local future, promise = vigil.future()
    local ch = vigil.channel(1)
    local co = spawn(sleep, 10)
    suspend()
    do
      setmetatable({}, { __gc = function()
        promise:complete("from gc")
        ch:try_send("from gc")
        co:cancel("from gc")
      end })
    end
    collect()
    assert.equal("from gc", await(future))
    assert.equal("from gc", ch:recv())
    local _, err = pawait(co)
    assert.equal("from gc", err.message)
  end)
end)

describe("with the collector at its busiest", function()
  local function workload()
    local ch, out = vigil.channel(2), vigil.channel()
    local list = {}
    for i = 1, 4 do
      list[#list + 1] = spawn(function()
        for k = 1, 5 do ch:send { i * k } end
      end)
    end
    for _ = 1, 3 do
      spawn(function()
        for v in ch do out:send(v[1]) end
      end)
    end
    list[#list + 1] = spawn(function()
      local sum = 0
      for _ = 1, 20 do sum = sum + out:recv() end
      return sum
    end)
    list[#list + 1] = spawn(function()
      local step = vigil.coroutine.wrap(function()
        for i = 1, 5 do
          sleep(0.0001)
          vigil.coroutine.yield { i }
        end
      end)
      local sum = 0
      for t in step do sum = sum + t[1] end
      return sum
    end)
    for i = 1, 10 do
      local co = spawn(function() pcall(sleep, 10) error { i } end)
      list[#list + 1] = spawn(function()
        local _, err = pawait(co)
        return err[1]
      end)
      suspend()
      co:cancel()
    end
    local results = vigil.await_all_or_fail(list)
    ch:close()
    assert.equal(150, results[5])
    assert.equal(15, results[6])
    assert.equal(10, results[16])
  end

  local function stressed(name, mode)
    it(name, function()
      local ok, err = pcall(function()
        mode()
        for _ = 1, 3 do vigil.run(workload) end
      end)
      collectgarbage("incremental", 200, 100)
      if not ok then error(err, 0) end
    end)
  end

  stressed("incremental, all is well", function()
    collectgarbage("incremental", 1, 1000)
  end)

  stressed("generational, all is well", function()
    collectgarbage("generational", 1, 1)
  end)

  it("in each line, all is well", function()
    local code, out, err = helper.run_script [[
      local vigil = require "vigil"
      local spawn, suspend, await = vigil.spawn, vigil.suspend, vigil.await
      local function hook() collectgarbage() end
      local function eager(fn, ...)
        debug.sethook(hook, "l")
        return fn(...)
      end
      vigil.run(eager, function()
        local ch = vigil.channel()
        local co = spawn(eager, function()
          local sum = 0
          for v in ch do sum = sum + v[1] end
          return sum
        end)
        for i = 1, 10 do
          ch:send { i }
          local future, promise = vigil.future()
          spawn(eager, function() promise:complete { i } end)
          assert(await(future)[1] == i)
        end
        ch:close()
        print(await(co))
      end)
    ]]
    assert.equal("", err)
    assert.equal("55\n", out)
    assert.equal(0, code)
  end)
end)

describe("threads", function()
  it("of a burst are given back after the run (SC-11)", function()
    local before = kilobytes()
    vigil.run(function()
      for _ = 1, 5000 do spawn(suspend) end
    end)
    assert.is_true(kilobytes() - before < 200)
  end)

  spec("whose stack has grown huge are not kept (ruling 14)", function()
    local function deep(n)
      if n == 0 then return suspend() end
      return 1, deep(n - 1)
    end
    local before = kilobytes()
    for _ = 1, 4 do spawn(deep, 20000) end
    suspend()
    suspend()
    for _ = 1, 5 do collect() end -- each halves what a thread has too much
    assert.is_true(kilobytes() - before < 200)
  end)
end)
