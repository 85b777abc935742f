-- The state closes, at any moment and with anything in flight: DESIGN 2.4,
-- 2.5; FIELD-REPORTS R01, R03, R05; SEMANTICS GS-07, GS-09.
--
-- Each spec is a process of its own: its exit status and an empty stderr are
-- what is checked, and under a sanitizer that nothing freed is touched.

local helper = require "spec.helper"

local prelude = [[
local vigil = require "vigil"
local spawn, sleep, suspend = vigil.spawn, vigil.sleep, vigil.suspend
local await, pawait = vigil.await, vigil.pawait
local never = (vigil.future())
local function flight() return await(never) end
]]

-- expected: { code =, out =, err = a pattern }
local function closes(name, code, expected)
  expected = expected or {}
  it(name, function()
    local status, out, err = helper.run_script(prelude .. code)
    if expected.err then
      assert.matches(expected.err, err)
    else
      assert.equal("", err)
    end
    assert.equal(expected.out or "", out)
    assert.equal(expected.code or 0, status)
  end)
end

describe("the end of the script", function()
  closes("after nothing but require", "")
  closes("with coroutines that never ran", [[
    for i = 1, 100 do spawn(print, i) end
  ]])
  closes("with sleeping coroutines (R01)", [[
    for _ = 1, 100 do spawn(sleep, 3600) end
    suspend()
  ]])
  closes("with coroutines in every kind of wait (R01)", [[
    local ch, full = vigil.channel(), vigil.channel(1)
    full:try_send(1)
    local timer, ticks = vigil.timer(3600), vigil.timer(3600, 1)
    local token = vigil.timeout(3600)
    local child = spawn(flight)
    spawn(function() ch:recv() end)
    spawn(function() full:send(2) end)
    spawn(function() await(timer) end)
    spawn(function() await(ticks) end)
    spawn(function() await(token) end)
    spawn(function() await(child) end)
    spawn(function() await(never, token) end)
    spawn(function() await(never, 3600) end)
    spawn(function() vigil.select { ch:receiving(), full:sending(1), never } end)
    spawn(function() vigil.await_all { never, child, timer } end)
    spawn(function() vigil.await_any_or_fail { never, child, timer } end)
    spawn(function() vigil.iterate({ 1, 2, 3 }, flight) end)
    spawn(function() for _ in ch do end end)
    spawn(function()
      await(setmetatable({}, { __await = function(_, w)
        w:on_cancel(function() print "not after the end" end)
      end }))
    end)
    spawn(function() vigil.coroutine.wrap(flight)() end)
    sleep(0.002)
  ]])
  closes("with a coroutine in protect", [[
    spawn(vigil.protect, flight)
    suspend()
  ]])
  closes("with a coroutine in a limited protect", [[
    spawn(vigil.protect, flight, 3600)
    suspend()
  ]])
  closes("with a coroutine in nested blocks", [[
    spawn(function()
      vigil.with_timeout(3600, vigil.protect, function()
        vigil.with_timeout(3600, flight)
      end)
    end)
    suspend()
  ]])
  closes("with a coroutine that was cancelled and has not run since", [[
    local co = spawn(flight)
    suspend()
    co:cancel()
  ]])
  closes("with a value on its way to a receiver", [[
    local ch = vigil.channel()
    spawn(function() ch:recv() end)
    suspend()
    ch:send {}
  ]])
  closes("with a slot promised to a sender", [[
    local ch = vigil.channel(1)
    ch:send(1)
    spawn(function() ch:send {} end)
    suspend()
    ch:recv()
  ]])
  closes("with finally handlers that have not run", [[
    local co = spawn(flight)
    co:finally(function() print "never" end)
    suspend()
    co:cancel()
  ]])
  closes("runs no code of a coroutine that waits (R01)", [[
    spawn(function()
      local _ <close> = setmetatable({}, { __close = function()
        print "not after the end"
      end })
      pcall(flight)
      print "not after the end"
    end)
    suspend()
  ]])
  closes("with stages of a future that has not settled", [[
    local f, p = vigil.future()
    local g = f:map(print):catch(print):finally(print)
    spawn(await, g)
    suspend()
    _G.keep = p
  ]])
  closes("with stages of a future that has just settled", [[
    local f, p = vigil.future()
    f:map(print)
    p:complete(1)
  ]])
  closes("with timers that nobody waits for (GS-09)", [[
    _G.a, _G.b = vigil.timer(3600), vigil.timeout(3600)
    suspend()
  ]])
  closes("after a run (GS-10)", [[
    vigil.run(function() spawn(sleep, 0.001) end)
  ]])
  closes("after a run, with a new one never made", [[
    vigil.run(function() end)
    spawn(flight)
  ]])
  closes("with ten thousand sleepers", [[
    for _ = 1, 10000 do spawn(sleep, 3600) end
    suspend()
  ]])
  closes("with a generator that has waited and not ended", [[
    vigil.run(function()
      local step = vigil.coroutine.wrap(function()
        suspend()
        vigil.coroutine.yield(1)
      end)
      step()
      _G.step = step
    end)
  ]])
  closes("with a block abandoned inside a generator", [[
    vigil.run(function()
      local step = vigil.coroutine.wrap(function()
        vigil.with_timeout(3600, vigil.coroutine.yield, 1)
      end)
      step()
      _G.step = step
    end)
  ]])
end)

describe("an error that ends the script", function()
  closes("in the main chunk, with coroutines in flight", [[
    spawn(flight)
    suspend()
    error "the end"
  ]], { code = 1, err = "the end" })
  closes("of the run", [[
    vigil.run(function()
      spawn(sleep, 3600)
      suspend()
      error "the end"
    end)
  ]], { code = 1, err = "the end" })
end)

describe("os.exit(9, true)", function()
  local function exits(where, code)
    closes(where .. " ends with 9 and nothing on stderr (R03)",
      "local function leave() os.exit(9, true) end\n" .. code,
      { code = 9 })
  end

  exits("in the main chunk", "leave()")
  exits("in the main chunk with coroutines in flight", [[
    spawn(flight)
    spawn(sleep, 3600)
    suspend()
    leave()
  ]])
  exits("in a coroutine", "vigil.run(leave)")
  exits("in a coroutine after a sleep, with much in flight", [[
    vigil.run(function()
      local ch = vigil.channel()
      spawn(flight)
      spawn(sleep, 3600)
      spawn(function() ch:recv() end)
      spawn(function() await(vigil.timer(3600, 1)) end)
      spawn(function() vigil.select { ch:receiving(), never } end)
      sleep(0.005)
      leave()
    end)
  ]])
  exits("in a coroutine that the main chunk drives", [[
    spawn(leave)
    sleep(1)
  ]])
  exits("in a coroutine while the main chunk is handed a value", [[
    local ch = vigil.channel()
    spawn(function()
      ch:send {}
      leave()
    end)
    ch:recv()
  ]])
  exits("in protect", "vigil.run(vigil.protect, leave)")
  exits("in protect after a wait", [[
    vigil.run(vigil.protect, function() sleep(0.001) leave() end)
  ]])
  exits("in a limited protect", "vigil.run(vigil.protect, leave, 10)")
  exits("in with_timeout", "vigil.run(vigil.with_timeout, 10, leave)")
  exits("in nested with_timeout after a wait", [[
    vigil.run(vigil.with_timeout, 10, vigil.with_timeout, 10, function()
      sleep(0.001)
      leave()
    end)
  ]])
  exits("in with_timeout in the main chunk", "vigil.with_timeout(10, leave)")
  exits("in vigil.pcall", "vigil.run(vigil.pcall, leave)")
  exits("in a generator", [[
    vigil.run(function() vigil.coroutine.wrap(leave)() end)
  ]])
  exits("in a generator after a wait, inside another", [[
    vigil.run(function()
      vigil.coroutine.wrap(function()
        vigil.coroutine.wrap(function()
          sleep(0.001)
          leave()
        end)()
      end)()
    end)
  ]])
  exits("in a finally handler", [[
    vigil.run(function() spawn(function() end):finally(leave) end)
  ]])
  exits("in a __close", [[
    vigil.run(function()
      local _ <close> = setmetatable({}, { __close = leave })
      sleep(0.001)
    end)
  ]])
  exits("in a __close of a cancelled coroutine", [[
    vigil.run(function()
      local co = spawn(function()
        local _ <close> = setmetatable({}, { __close = leave })
        flight()
      end)
      suspend()
      co:cancel()
    end)
  ]])
  exits("in a __gc", [[
    vigil.run(function()
      spawn(flight)
      suspend()
      setmetatable({}, { __gc = leave })
      collectgarbage()
      collectgarbage()
    end)
  ]])
  exits("in an __await", [[
    vigil.run(function() await(setmetatable({}, { __await = leave })) end)
  ]])
  exits("in an on_cancel function", [[
    vigil.run(function()
      local co = spawn(await, setmetatable({}, { __await = function(_, w)
        w:on_cancel(leave)
      end }))
      suspend()
      co:cancel()
      pawait(co)
    end)
  ]])
  exits("in an on_unhandled function", [[
    vigil.on_unhandled(leave)
    vigil.run(function() spawn(error, "x") end)
  ]])
  exits("in the function of iterate", [[
    vigil.run(function() vigil.iterate({ 1, 2 }, leave) end)
  ]])
  exits("in the iterator of iterate", [[
    vigil.run(function() vigil.iterate(leave, print) end)
  ]])
  exits("in the iterator of await_all", [[
    vigil.run(function() vigil.await_all(leave) end)
  ]])
  exits("in a stage of a future", [[
    vigil.run(function()
      local f, p = vigil.future()
      f:map(leave)
      p:complete(1)
    end)
  ]])
  exits("in a debug hook", [[
    vigil.run(function()
      debug.sethook(leave, "", 1000)
      while true do suspend() end
    end)
  ]])
  exits("during a shutdown", [[
    vigil.run(function()
      spawn(function()
        pcall(flight)
        leave()
      end)
      suspend()
      vigil.shutdown()
      suspend()
    end)
  ]])
  exits("after a failed run", [[
    pcall(vigil.run, function() spawn(error, "x") end)
    leave()
  ]])
  exits("during a deadlock's clean-up", [[
    vigil.configure { warnings = false }
    vigil.run(function()
      pcall(flight)
      leave()
    end)
  ]])
  exits("in a run inside a plain coroutine", [[
    coroutine.wrap(function() vigil.run(function()
      sleep(0.001)
      leave()
    end) end)()
  ]])

  closes("runs no <close> of other coroutines (R01)", [[
    vigil.run(function()
      spawn(function()
        local _ <close> = setmetatable({}, { __close = function()
          print "not after the end"
        end })
        flight()
      end)
      suspend()
      os.exit(9, true)
    end)
  ]], { code = 9 })
  closes("of 0 is 0", "vigil.run(function() os.exit(0, true) end)")
  closes("of true is 0", "vigil.run(function() os.exit(true, true) end)")
  closes("of false is 1", "vigil.run(function() os.exit(false, true) end)",
    { code = 1 })
  closes("without closing the state ends with its status", [[
    vigil.run(function()
      spawn(flight)
      sleep(0.001)
      os.exit(7)
    end)
  ]], { code = 7 })
end)

describe("finalizers while the state closes", function()
  closes("may call vigil, and wait, before its own end (GC-08)", [[
    local ch = vigil.channel()
    spawn(function() ch:recv() end)
    suspend()
    _G.late = setmetatable({}, { __gc = function()
      spawn(print, "ran")
      ch:try_send(1)
      ch:close()
      vigil.timer(1)
      print(pcall(sleep, 0.001))
    end })
  ]], { out = "ran\ntrue\n" })

  it("find the loop closed after its end (R05)", function()
    local status, out, err = helper.run_script([[
      local vigil, ch, future, promise, timer, co, calls
      -- made before the module, finalized after it
      _G.last = setmetatable({}, { __gc = function()
        for i, call in ipairs(calls) do
          local ok, err = pcall(call)
          if ok or not tostring(err):find("closed", 1, true) then
            print(i, ok, err)
          end
        end
        print(tostring(ch), tostring(future), tostring(timer), tostring(co))
        print "checked"
      end })
      vigil = require "vigil"
      ch, timer = vigil.channel(), vigil.timer(10)
      future, promise = vigil.future()
      co = vigil.spawn(vigil.sleep, 10)
      vigil.suspend()
      calls = {
        function() vigil.spawn(print) end,
        function() vigil.run(print) end,
        function() vigil.await(future) end,
        function() vigil.pawait(future) end,
        function() vigil.sleep(0) end,
        function() vigil.suspend() end,
        function() vigil.channel() end,
        function() vigil.future() end,
        function() vigil.timer(1) end,
        function() vigil.timeout(1) end,
        function() vigil.coroutines() end,
        function() vigil.shutdown() end,
        function() vigil.checkpoint() end,
        function() vigil.protect(print) end,
        function() vigil.with_timeout(1, print) end,
        function() vigil.select { future } end,
        function() vigil.await_all { future } end,
        function() vigil.iterate({ 1 }, print) end,
        function() vigil.dump() end,
        function() ch:send(1) end,
        function() ch:recv() end,
        function() ch:try_send(1) end,
        function() ch:try_recv() end,
        function() future:cancel() end,
        function() promise:complete(1) end,
        function() promise:fail(1) end,
        function() timer:close() end,
        function() co:cancel() end,
        function() co:finally(print) end,
        function() co:awaiting() end,
        function() co:traceback() end,
        function() co:high_priority() end,
      }
    ]])
    assert.equal("", err)
    assert.equal(0, status)
    assert.matches("^[^\n]*\nchecked\n$", out)
  end)

  closes("that fail change nothing (R01)", [[
    spawn(flight)
    suspend()
    _G.late = setmetatable({}, { __gc = function() spawn(error, "x") end })
  ]])
end)

describe("what was written before the end", function()
  closes("with print is there (R21)", [[
    vigil.run(function()
      for i = 1, 3 do
        print(i)
        sleep(0.001)
      end
      os.exit(0, true)
    end)
  ]], { out = "1\n2\n3\n" })
end)
