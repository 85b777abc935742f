-- Plain coroutines next to vigil's: vigil.coroutine, and the places where Lua
-- cannot yield.  DESIGN 3; FIELD-REPORTS R23, R32, R35.

local helper = require "spec.helper"
local vigil = require "vigil"

local spawn, sleep, suspend = vigil.spawn, vigil.sleep, vigil.suspend
local await, pawait = vigil.await, vigil.pawait
local aware = vigil.coroutine

local function spec(name, fn)
  it(name, helper.in_vigil(fn))
end

local function gather(step)
  local list = {}
  for value in step do list[#list + 1] = value end
  return list
end

describe("a generator", function()
  spec("may sleep: the consumer sees only its values (R35)", function()
    local step = aware.wrap(function()
      for i = 1, 5 do
        aware.yield(i)
        sleep(0.002)
      end
    end)
    local before = vigil.now()
    assert.same({ 1, 2, 3, 4, 5 }, gather(step))
    assert.is_true(vigil.now() - before >= 0.01)
  end)

  spec("that waits lets others run meanwhile (R35)", function()
    local ran = 0
    spawn(function()
      for _ = 1, 5 do
        ran = ran + 1
        suspend()
      end
    end)
    local step = aware.wrap(function()
      sleep(0.002)
      aware.yield(ran)
    end)
    assert.equal(5, step())
  end)

  spec("may suspend, await, recv and select", function()
    local ch = vigil.channel()
    spawn(function()
      ch:send "one"
      ch:send "two"
    end)
    local step = aware.wrap(function()
      suspend()
      aware.yield(await(spawn(function() suspend() return "zero" end)))
      aware.yield((ch:recv()))
      local _, value = vigil.select { ch:receiving() }
      aware.yield(value)
    end)
    assert.same({ "zero", "one", "two" }, gather(step))
  end)

  spec("made in one coroutine pauses the one that resumes it (R35)",
    function()
      local step = aware.wrap(function()
        sleep(0.003)
        aware.yield "value"
      end)
      local consumer = spawn(function() return step() end)
      suspend()
      assert.equal("suspended", consumer.state)
      assert.equal("value", await(consumer))
    end)

  spec("resumed in turn by two coroutines goes on (R35)", function()
    local step = aware.wrap(function()
      for i = 1, 6 do
        sleep(0.0005)
        aware.yield(i)
      end
    end)
    local got = {}
    for _ = 1, 3 do
      got[#got + 1] = await(spawn(function() return (step()) end))
      got[#got + 1] = await(spawn(function() return (step()) end))
    end
    assert.same({ 1, 2, 3, 4, 5, 6 }, got)
  end)

  spec("inside a generator inside a generator may wait", function()
    local function nest(n)
      if n == 0 then
        sleep(0.001)
        aware.yield "deep"
        return "end"
      end
      local step = aware.wrap(nest)
      aware.yield((step(n - 1)))
      return (step())
    end
    local step = aware.wrap(nest)
    assert.equal("deep", step(20))
    assert.equal("end", step())
  end)

  spec("gets the values of its resumes after a wait", function()
    local step = aware.wrap(function(a)
      sleep(0.001)
      local b = aware.yield(a + 1)
      sleep(0.001)
      return b * 2
    end)
    assert.equal(2, step(1))
    assert.equal(10, step(5))
  end)

  spec("passes nils and many values through", function()
    local co = aware.create(function(...)
      suspend()
      return select("#", ...), aware.yield(nil, 2, nil)
    end)
    assert.same({ n = 4, true, nil, 2, nil },
      table.pack(aware.resume(co, nil, nil)))
    assert.same({ n = 5, true, 2, nil, 5, nil },
      table.pack(aware.resume(co, nil, 5, nil)))
  end)

  spec("raises its error through wrap with the position", function()
    local step = aware.wrap(function()
      suspend()
      error("bad")
    end)
    local ok, err = pcall(step)
    assert.is_false(ok)
    assert.matches("aware_spec.lua:%d+: bad", err)
  end)

  spec("raises any value through wrap", function()
    local value = {}
    local step = aware.wrap(function()
      suspend()
      error(value)
    end)
    local ok, err = pcall(step)
    assert.is_false(ok)
    assert.equal(value, err)
  end)

  spec("that fails inside a protected call in it goes on", function()
    local step = aware.wrap(function()
      local ok, err = pcall(function()
        sleep(0.001)
        error("inner", 0)
      end)
      aware.yield(ok, err)
    end)
    assert.same({ false, "inner" }, { step() })
  end)

  spec("that is cancelled while it waits may catch and go on with values",
    function()
      local co = spawn(function()
        local step = aware.wrap(function()
          pcall(sleep, 10)
          aware.yield "caught"
        end)
        return step()
      end)
      suspend()
      co:cancel()
      assert.equal("caught", await(co))
    end)

  it("without waits works outside of every coroutine", function()
    local step = aware.wrap(function()
      for i = 1, 3 do aware.yield(i) end
    end)
    assert.same({ 1, 2, 3 }, gather(step))
  end)

  it("may wait in the main chunk (R35)", function()
    local step = aware.wrap(function()
      for i = 1, 3 do
        sleep(0.001)
        aware.yield(i)
      end
    end)
    assert.same({ 1, 2, 3 }, gather(step))
  end)

  spec("made by the standard library may be driven by the aware one",
    function()
      local co = coroutine.create(function()
        sleep(0.001)
        coroutine.yield(1)
        sleep(0.001)
        return 2
      end)
      assert.same({ true, 1 }, { aware.resume(co) })
      assert.same({ true, 2 }, { aware.resume(co) })
    end)

  spec("that is dropped while it waits for a cancelled coroutine is freed",
    function()
      local weak = setmetatable({}, { __mode = "k" })
      do
        local co = spawn(function()
          local step = aware.create(function() sleep(10) end)
          weak[step] = true
          aware.resume(step)
        end)
        suspend()
        co:cancel()
        pawait(co)
      end
      collectgarbage()
      collectgarbage()
      assert.is_nil(next(weak))
    end)
end)

describe("vigil.coroutine", function()
  it("has every function of the standard library", function()
    for name in pairs(coroutine) do
      assert.is_function(aware[name], name)
    end
  end)

  spec("resume of a dead one says so", function()
    local co = aware.create(function() end)
    aware.resume(co)
    assert.same({ false, "cannot resume dead coroutine" },
      { aware.resume(co) })
  end)

  spec("wrap of a dead one raises so", function()
    local step = aware.wrap(function() end)
    step()
    local ok, err = pcall(step)
    assert.is_false(ok)
    assert.matches("cannot resume dead coroutine", err)
  end)

  spec("resume of one that waits in another coroutine is refused",
    function()
      local co = aware.create(function() sleep(0.005) return "done" end)
      local owner = spawn(function() return aware.resume(co) end)
      suspend()
      local ok, err = aware.resume(co)
      assert.is_false(ok)
      assert.matches("cannot resume", err)
      assert.same({ true, "done" }, { await(owner) })
    end)

  spec("wrap of one that waits in another coroutine raises", function()
    local step = aware.wrap(function() sleep(0.005) return "done" end)
    local owner = spawn(function() return step() end)
    suspend()
    assert.is_false((pcall(step)))
    assert.equal("done", await(owner))
  end)

  spec("resume of the running one is refused", function()
    local co
    co = aware.create(function() return aware.resume(co) end)
    local ok, inner_ok, err = aware.resume(co)
    assert.is_true(ok)
    assert.is_false(inner_ok)
    assert.matches("cannot resume", err)
  end)

  spec("wrap of the running one is refused", function()
    local step
    step = aware.wrap(function() return pcall(step) end)
    local ok, err = step()
    assert.is_false(ok)
    assert.matches("cannot resume", err)
  end)

  spec("status names suspended, running, normal and dead", function()
    local co, inside, outer
    co = aware.create(function()
      inside = aware.status(co)
      local other = aware.create(function() outer = aware.status(co) end)
      aware.resume(other)
      aware.yield()
    end)
    assert.equal("suspended", aware.status(co))
    aware.resume(co)
    assert.equal("running", inside)
    assert.equal("normal", outer)
    assert.equal("suspended", aware.status(co))
    aware.resume(co)
    assert.equal("dead", aware.status(co))
  end)

  spec("status of a failed one is dead", function()
    local co = aware.create(error)
    aware.resume(co, "x")
    assert.equal("dead", aware.status(co))
  end)

  spec("status of one that waits is normal: it is not to be resumed",
    function()
      local co = aware.create(function() sleep(0.002) end)
      local owner = spawn(aware.resume, co)
      suspend()
      assert.equal("normal", aware.status(co))
      await(owner)
      assert.equal("dead", aware.status(co))
    end)

  spec("close of one that waits is refused", function()
    local co = aware.create(function() sleep(0.002) end)
    local owner = spawn(aware.resume, co)
    suspend()
    local ok, err = pcall(aware.close, co)
    assert.is_false(ok)
    assert.matches("cannot close", err)
    await(owner)
  end)

  spec("close runs <close> variables", function()
    local closed = false
    local co = aware.create(function()
      local _ <close> = setmetatable({}, { __close = function()
        closed = true
      end })
      suspend()
      aware.yield()
    end)
    aware.resume(co)
    assert.is_true(aware.close(co))
    assert.is_true(closed)
    assert.equal("dead", aware.status(co))
  end)

  spec("close gives the error of a failed one", function()
    local co = aware.create(error)
    aware.resume(co, "bad")
    assert.same({ false, "bad" }, { aware.close(co) })
  end)

  spec("running gives the thread and false", function()
    local thread, main = aware.running()
    assert.is_thread(thread)
    assert.is_false(main)
  end)

  spec("isyieldable is true inside a generator", function()
    assert.is_true(aware.wrap(function() return aware.isyieldable() end)())
  end)

  it("isyieldable is false in the main chunk", function()
    assert.is_false(aware.isyieldable())
  end)

  it("yield in the main chunk is an error", function()
    assert.is_false((pcall(aware.yield)))
  end)

  for _, name in ipairs { "create", "wrap", "resume", "status", "close" } do
    spec(name .. " refuses a number by name", function()
      local ok, err = pcall(aware[name], 5)
      assert.is_false(ok)
      assert.matches("bad argument #1", err)
    end)
  end

  it("install puts it in _G and package.loaded", function()
    local code, out = helper.run_script [[
      local vigil = require "vigil"
      vigil.coroutine.install()
      print(coroutine == vigil.coroutine, require "coroutine" == coroutine)
      vigil.run(function()
        for v in coroutine.wrap(function()
          for i = 1, 3 do
            vigil.sleep(0.001)
            coroutine.yield(i)
          end
        end) do io.write(v, " ") end
      end)
    ]]
    assert.equal(0, code)
    assert.equal("true\ttrue\n1 2 3 ", out)
  end)
end)

describe("an await inside a plain coroutine", function()
  spec("of the standard library raises and points at vigil.coroutine",
    function()
      local ok, err = pcall(coroutine.wrap(function() sleep(1) end))
      assert.is_false(ok)
      assert.matches("vigil.sleep", err, 1, true)
      assert.matches("vigil.coroutine", err, 1, true)
    end)

  it("in the main chunk raises and points at vigil.coroutine", function()
    local ok, err = pcall(coroutine.wrap(function() sleep(1) end))
    assert.is_false(ok)
    assert.matches("vigil.coroutine", err, 1, true)
  end)

  spec("inside an aware one inside a plain one raises, too", function()
    local ok, err = pcall(coroutine.wrap(function()
      return aware.wrap(function() sleep(1) end)()
    end))
    assert.is_false(ok)
    assert.matches("vigil.coroutine", err, 1, true)
  end)

  spec("leaves the coroutine around it as it was", function()
    pcall(coroutine.wrap(function() sleep(1) end))
    sleep(0.001)
    assert.equal("running", vigil.current().state)
  end)

  spec("does not disturb a plain coroutine's own yields (R23)", function()
    local co = coroutine.wrap(function()
      for i = 1, 3 do
        pcall(sleep, 1)
        coroutine.yield(i)
      end
    end)
    assert.equal(1, co())
    suspend()
    assert.equal(2, co())
  end)
end)

describe("an await where Lua cannot yield names", function()
  -- Each must fail at once, with the call's name and the culprit's.
  local function refuses(name, culprit, fn)
    spec(name .. " (R32)", function()
      local reached = false
      local ok, err = pcall(fn, function()
        sleep(0.001)
        reached = true
      end)
      assert.is_false(reached)
      assert.is_false(ok)
      assert.matches("vigil.sleep", tostring(err), 1, true)
      assert.matches(culprit, tostring(err), 1, true)
      sleep(0.001) -- the loop goes on
    end)
  end

  refuses("string.gsub", "string.gsub", function(wait)
    return string.gsub("a", "a", wait)
  end)

  refuses("string.gsub called as a method", "string.gsub", function(wait)
    return ("a"):gsub("a", wait)
  end)

  refuses("table.sort", "table.sort", function(wait)
    table.sort({ 3, 2, 1 }, wait)
  end)

  refuses("the reader of load", "load", function(wait)
    local chunk, err = load(wait)
    if not chunk then error(err, 0) end
  end)

  refuses("require", "require", function(wait)
    package.preload["vigil_spec_waiting"] = function() wait() end
    require "vigil_spec_waiting"
  end)

  refuses("a __gc metamethod", "__gc", function(wait)
    local ok, err = true, nil
    do
      setmetatable({}, { __gc = function() ok, err = pcall(wait) end })
    end
    collectgarbage()
    collectgarbage()
    if not ok then error(err, 0) end
  end)

  refuses("a __tostring below tostring", "tostring", function(wait)
    return tostring(setmetatable({}, { __tostring = wait }))
  end)

  refuses("string.gsub around functions that can yield", "string.gsub",
    function(wait)
      return string.gsub("a", "a", function()
        vigil.pcall(error)
        pcall(error)
        return pairs(setmetatable({}, { __pairs = wait }))
      end)
    end)

  refuses("string.gsub between two aware generators", "string.gsub",
    function(wait)
      local ok, err = aware.resume(aware.create(function()
        return string.gsub("a", "a", function()
          return aware.wrap(function() aware.wrap(wait)() end)()
        end)
      end))
      if not ok then error(err, 0) end
    end)

  refuses("string.gsub around an aware generator", "string.gsub",
    function(wait)
      return string.gsub("a", "a", function()
        return aware.wrap(wait)()
      end)
    end)

  refuses("a string.gsub inside an aware generator", "string.gsub",
    function(wait)
      local ok, err = aware.resume(aware.create(function()
        return string.gsub("a", "a", wait)
      end))
      if not ok then error(err, 0) end
    end)

  refuses("a message handler", "", function(wait)
    local refusal
    xpcall(error, function()
      local _
      _, refusal = pcall(wait)
    end)
    error(refusal, 0)
  end)

  spec("and await, recv, select and suspend are named as well", function()
    local future = vigil.future()
    local ch = vigil.channel()
    local calls = {
      await = function() await(future) end,
      suspend = suspend,
      recv = function() ch:recv() end,
      select = function() vigil.select { future } end,
    }
    for name, call in pairs(calls) do
      local ok, err = pcall(string.gsub, "a", "a", call)
      assert.is_false(ok)
      assert.matches(name, err, 1, true)
      assert.matches("string.gsub", err, 1, true)
    end
  end)

  spec("even where nothing would have to wait", function()
    local future, promise = vigil.future()
    promise:complete(1)
    local ok, err = pcall(string.gsub, "a", "a", function()
      await(future)
    end)
    assert.is_false(ok)
    assert.matches("string.gsub", err, 1, true)
  end)
end)

describe("an await works", function()
  local function works(name, fn)
    spec("in " .. name .. " (R32)", function()
      local waited = 0
      fn(function(...)
        sleep(0.0005)
        waited = waited + 1
        return ...
      end)
      assert.is_true(waited > 0)
    end)
  end

  works("pcall", function(wait) assert.is_true((pcall(wait))) end)
  works("xpcall", function(wait) assert.is_true((xpcall(wait, print))) end)
  works("pcall inside pcall", function(wait)
    assert.is_true((pcall(pcall, pcall, wait)))
  end)
  works("a for iterator", function(wait)
    local n = 0
    for i in function() wait() n = n + 1 return n < 3 and n or nil end do
      assert.equal(n, i)
    end
  end)
  works("__index", function(wait)
    local t = setmetatable({}, { __index = function(_, k)
      return wait(k .. "!")
    end })
    assert.equal("a!", t.a)
  end)
  works("__newindex", function(wait)
    local t = setmetatable({}, { __newindex = function(t, k, v)
      wait()
      rawset(t, k, v)
    end })
    t.a = 1
    assert.equal(1, t.a)
  end)
  works("__call", function(wait)
    assert.equal(5, setmetatable({}, { __call = function(_, x)
      return wait(x)
    end })(5))
  end)
  works("__add", function(wait)
    assert.equal(7, setmetatable({}, { __add = function(_, x)
      return wait(x)
    end }) + 7)
  end)
  works("__eq", function(wait)
    local mt = { __eq = function() return wait(true) end }
    assert.is_true(setmetatable({}, mt) == setmetatable({}, mt))
  end)
  works("__lt", function(wait)
    local mt = { __lt = function() return wait(true) end }
    assert.is_true(setmetatable({}, mt) < setmetatable({}, mt))
  end)
  works("__le", function(wait)
    local mt = { __le = function() return wait(true) end }
    assert.is_true(setmetatable({}, mt) <= setmetatable({}, mt))
  end)
  works("__concat", function(wait)
    assert.equal("x", setmetatable({}, { __concat = function()
      return wait("x")
    end }) .. "y")
  end)
  works("__len", function(wait)
    assert.equal(3, #setmetatable({}, { __len = function()
      return wait(3)
    end }))
  end)
  works("__unm", function(wait)
    assert.equal(4, -setmetatable({}, { __unm = function()
      return wait(4)
    end }))
  end)
  works("__pairs", function(wait)
    local t = setmetatable({}, { __pairs = function(t)
      wait()
      return next, t
    end })
    local first = pairs(t)
    assert.equal(next, first)
  end)
  works("__close at the end of a block", function(wait)
    do
      local _ <close> = setmetatable({}, { __close = function() wait() end })
    end
  end)
  works("__close while an error unwinds", function(wait)
    local ok, err = pcall(function()
      local _ <close> = setmetatable({}, { __close = function() wait() end })
      error("bad", 0)
    end)
    assert.is_false(ok)
    assert.equal("bad", err)
  end)
  works("__close of a generic for", function(wait)
    local closing = setmetatable({}, { __close = function() wait() end })
    for value in next, { 1 }, nil, closing do assert.equal(1, value) end
  end)
  works("a chunk run by dofile", function(wait)
    local name = os.tmpname()
    local file = assert(io.open(name, "w"))
    file:write "VIGIL_SPEC_WAIT()"
    file:close()
    rawset(_G, "VIGIL_SPEC_WAIT", wait)
    dofile(name)
    rawset(_G, "VIGIL_SPEC_WAIT", nil)
    os.remove(name)
  end)
  works("a chunk from load", function(wait)
    load("(...)()")(wait)
  end)
  works("with_timeout, protect and vigil.pcall", function(wait)
    vigil.with_timeout(1, vigil.protect, function()
      vigil.pcall(wait)
    end)
  end)
end)
