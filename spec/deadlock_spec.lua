-- When nothing can run and nothing can come: DESIGN 2.4, ruling 7; SEMANTICS
-- DL; FIELD-REPORTS R31.

local helper = require "spec.helper"
local vigil = require "vigil"

local spawn, sleep, suspend = vigil.spawn, vigil.sleep, vigil.suspend
local await, pawait = vigil.await, vigil.pawait

-- A future that nobody will ever complete.
local function pending()
  return (vigil.future())
end

local function is_deadlock(err)
  return vigil.is_error(err, "deadlock")
end

local function assert_deadlock(ok, err)
  assert.is_false(ok)
  assert.is_true(is_deadlock(err), "deadlock expected, got " .. tostring(err))
  return err
end

-- The run of fn must fail with a deadlock, soon.
local function stuck(name, fn)
  it(name, function()
    local before = vigil.now()
    assert_deadlock(pcall(vigil.run, fn))
    assert.is_true(vigil.now() - before < 0.4)
  end)
end

describe("deadlock", function()
  setup(function() vigil.configure { warnings = false } end)
  teardown(function() vigil.configure { warnings = true } end)

  describe("is found", function()
    stuck("with two that await each other (DL-01, R31)", function()
      local a, b
      a = spawn(function() await(b) end)
      b = spawn(function() await(a) end)
    end)

    stuck("with two that wait on each other's channel (R31)", function()
      local x, y = vigil.channel(), vigil.channel()
      spawn(function() x:recv() y:send(1) end)
      spawn(function() y:recv() x:send(1) end)
    end)

    stuck("with one that awaits itself (DL-06)", function()
      await(vigil.current())
    end)

    stuck("in recv", function() vigil.channel():recv() end)
    stuck("in send", function() vigil.channel():send(1) end)
    stuck("in the iteration of a channel", function()
      for _ in vigil.channel() do suspend() end
    end)
    stuck("in await of a future", function() await(pending()) end)
    stuck("in select", function()
      vigil.select { vigil.channel():receiving(), pending(),
        vigil.channel():sending(1) }
    end)
    stuck("in await_all", function()
      vigil.await_all { pending(), pending() }
    end)
    stuck("in await_any_or_fail", function()
      vigil.await_any_or_fail { pending(), pending() }
    end)
    stuck("in iterate", function()
      vigil.iterate({ 1, 2 }, function() await(pending()) end)
    end)
    stuck("in a generator", function()
      vigil.coroutine.wrap(function() await(pending()) end)()
    end)
    stuck("in protect", function()
      vigil.protect(function() await(pending()) end)
    end)
    stuck("in a chain of awaits", function()
      local function go(n)
        if n == 0 then return await(pending()) end
        await(spawn(go, n - 1))
      end
      go(50)
    end)
    stuck("in a user-defined awaitable", function()
      await(setmetatable({}, { __await = function() end }))
    end)
    stuck("with a thousand", function()
      local ch = vigil.channel()
      for _ = 1, 1000 do spawn(ch.recv, ch) end
    end)
    stuck("after timers have fired", function()
      sleep(0.002)
      vigil.channel():recv()
    end)
    stuck("beside timers that nobody waits for", function()
      local timer = vigil.timer(3600, 3600)
      local token = vigil.timeout(3600)
      vigil.channel():recv()
      return timer, token
    end)
    stuck("in a finally handler", function()
      spawn(function() end):finally(function() vigil.channel():recv() end)
    end)
  end)

  describe("gives", function()
    it("each one stuck its own error (DL-01)", function()
      local errors = {}
      assert_deadlock(pcall(vigil.run, function()
        local ch = vigil.channel()
        for i = 1, 3 do
          spawn(function()
            local _, err = pcall(ch.recv, ch)
            errors[i] = err
          end)
        end
      end))
      for i = 1, 3 do assert.is_true(is_deadlock(errors[i])) end
      assert.not_equal(errors[1], errors[2])
    end)

    it("an error that names where and for what (R31)", function()
      local err, place
      pcall(vigil.run, function()
        local ch = vigil.channel(3)
        local co = spawn(function()
          local info = debug.getinfo(1, "Sl")
          place = info.short_src .. ":" .. info.currentline + 3
          local _
          _, err = pcall(function() return (ch:recv()) end)
        end)
        co.name = "reader"
      end)
      local text = tostring(err)
      assert.matches("'reader'", text, 1, true)
      assert.matches(place, text, 1, true)
      assert.matches("channel (0 of 3", text, 1, true)
    end)

    it("the code EDEADLOCK", function()
      local _, err = pcall(vigil.run, function() await(pending()) end)
      assert.equal("EDEADLOCK", err.code)
    end)

    it("run an error that counts them (DL-01)", function()
      local _, err = pcall(vigil.run, function()
        local future = pending()
        for _ = 1, 4 do spawn(await, future) end
      end)
      assert.matches("4 coroutines", err.message)
    end)

    it("run an error that lists them (R31)", function()
      local _, err = pcall(vigil.run, function()
        local ch = vigil.channel()
        spawn(ch.recv, ch).name = "one"
        spawn(await, pending()).name = "two"
      end)
      assert.matches("'one'.-channel", err.report)
      assert.matches("'two'.-future", err.report)
      assert.is_nil(tostring(err):find("\n", 1, true))
    end)

    it("run its failure although each one caught its own (ruling 7)",
      function()
        local caught
        local err = assert_deadlock(pcall(vigil.run, function()
          local _
          _, caught = pcall(await, pending())
          return "fine"
        end))
        assert.is_true(is_deadlock(caught))
        assert.not_equal(caught, err)
      end)

    it("methods that return nil, err a raised error (ruling 7)", function()
      local raised
      pcall(vigil.run, function()
        local ch = vigil.channel()
        raised = not pcall(ch.recv, ch)
      end)
      assert.is_true(raised)
    end)

    it("a coroutine that is awaited its failure", function()
      local seen
      pcall(vigil.run, function()
        local child = spawn(await, pending())
        child:finally(function(co) seen = co.error end)
        pawait(child)
      end)
      assert.is_true(is_deadlock(seen))
    end)

    it("the hook nothing more than run tells", function()
      local told = 0
      vigil.on_unhandled(function() told = told + 1 end)
      pcall(vigil.run, function()
        spawn(await, pending())
        spawn(await, pending())
      end)
      vigil.on_unhandled(nil)
      assert.equal(0, told)
    end)

    it("an error in place of a pending one, which is its cause (DL-09)",
      function()
        local err = assert_deadlock(pcall(vigil.run, function()
          spawn(function()
            vigil.protect(function() await(pending()) end)
          end)
          spawn(error, "earlier")
          sleep(10)
        end))
        assert.equal("earlier", err.cause)
      end)
  end)

  describe("once caught", function()
    it("lets a coroutine suspend again and complete (DL-03)", function()
      local order = {}
      assert_deadlock(pcall(vigil.run, function()
        local function go(name)
          pcall(await, pending())
          order[#order + 1] = name .. " caught"
          sleep(0.001)
          order[#order + 1] = name .. " done"
        end
        spawn(go, "a")
        spawn(go, "b")
      end))
      assert.same({ "a caught", "b caught", "a done", "b done" }, order)
    end)

    it("a second verdict sets the cancelled state (ruling 7, R31)",
      function()
        local co, second, third
        assert_deadlock(pcall(vigil.run, function()
          co = spawn(function()
            local _
            pcall(await, pending())
            _, second = pcall(await, pending())
            _, third = pcall(sleep, 10)
            error(third, 0)
          end)
        end))
        assert.is_false(second == nil)
        assert.is_true(vigil.is_error(third, "cancelled"), tostring(third))
        assert.is_true(co:cancel_requested())
      end)

    it("a wait that goes on forever ends all the same (R31)", function()
      local before = vigil.now()
      assert_deadlock(pcall(vigil.run, function()
        local ch = vigil.channel()
        for _ = 1, 5 do pcall(ch.recv, ch) end
        vigil.protect(function()
          for _ = 1, 5 do pcall(ch.recv, ch) end
        end)
      end))
      assert.is_true(vigil.now() - before < 0.4)
    end)

    it("with_timeout works again in that coroutine", function()
      local err
      pcall(vigil.run, function()
        pcall(await, pending())
        local _
        _, err = pcall(vigil.with_timeout, 0.001, sleep, 10)
      end)
      assert.is_true(vigil.is_error(err, "timeout"))
    end)

    it("the next run works (GS-10)", function()
      pcall(vigil.run, function() await(pending()) end)
      assert.equal(1, vigil.run(function() sleep(0.001) return 1 end))
    end)

    it("the freed partner may still get its value", function()
      local got
      pcall(vigil.run, function()
        local x, y = vigil.channel(), vigil.channel()
        spawn(function()
          pcall(x.recv, x)
          y:send("late")
        end)
        spawn(function()
          pcall(y.recv, y)
          got = y:recv()
        end)
      end)
      assert.equal("late", got)
    end)
  end)

  describe("is not reported", function()
    local function fine(name, fn)
      it(name, helper.in_vigil(fn))
    end

    fine("while a sleep goes on (DL-08)", function()
      local ch = vigil.channel()
      spawn(function()
        sleep(0.005)
        ch:send(1)
      end)
      assert.equal(1, ch:recv())
    end)

    fine("while a timer is awaited (DL-08)", function()
      local ch = vigil.channel()
      spawn(function()
        await(vigil.timer(0.005))
        ch:send(1)
      end)
      assert.equal(1, ch:recv())
    end)

    fine("while a token can fire (DL-08)", function()
      assert.is_false((pawait(pending(), vigil.timeout(0.005))))
    end)

    fine("while a number of seconds can pass", function()
      local _, err = vigil.channel():recv(0.005)
      assert.is_true(vigil.is_error(err, "timeout"))
    end)

    fine("while a with_timeout can fire", function()
      local _, err = pcall(vigil.with_timeout, 0.005, await, pending())
      assert.is_true(vigil.is_error(err, "timeout"))
    end)

    fine("while a protect is limited", function()
      local co = spawn(function()
        vigil.protect(function() await(pending()) end, 0.005)
      end)
      suspend()
      co:cancel()
      pawait(co)
      assert.equal("cancelled", co.state)
    end)

    fine("while one case of a select can fire", function()
      assert.equal(2, (vigil.select {
        vigil.channel():receiving(), vigil.timer(0.005) }))
    end)

    fine("while coroutines suspend in turn", function()
      local ch = vigil.channel()
      spawn(function()
        for _ = 1, 1000 do suspend() end
        ch:send(1)
      end)
      assert.equal(1, ch:recv())
    end)
  end)

  describe("and hidden events (DL-08, ruling 7)", function()
    it("one that waits only for a hidden timer is cancelled quietly",
      function()
        local before, co = vigil.now(), nil
        vigil.run(function()
          co = spawn(function() await(vigil.timer(10):hide()) end)
        end)
        assert.equal("cancelled", co.state)
        assert.is_true(vigil.now() - before < 1)
      end)

    it("one that waits for a hidden event may clean up", function()
      local cleaned = false
      vigil.run(function()
        spawn(function()
          pcall(await, vigil.timer(10):hide())
          vigil.protect(function() sleep(0.001) end)
          cleaned = true
        end)
      end)
      assert.is_true(cleaned)
    end)

    it("a hidden timer fires as long as others keep the run going",
      function()
        local fired = false
        vigil.run(function()
          spawn(function()
            await(vigil.timer(0.002):hide())
            fired = true
          end)
          sleep(0.02)
        end)
        assert.is_true(fired)
      end)

    it("a hidden timer does not mask a deadlock of others", function()
      local before = vigil.now()
      assert_deadlock(pcall(vigil.run, function()
        spawn(function() await(vigil.timer(10):hide()) end)
        await(pending())
      end))
      assert.is_true(vigil.now() - before < 1)
    end)

    it("hidden twice counts once", function()
      vigil.run(function()
        local timer = vigil.timer(0.002)
        spawn(await, timer)
        suspend()
        timer:hide()
        timer:hide()
        sleep(0.01)
      end)
      local core = require "vigil.core"
      assert.equal(0, core.counts().active)
    end)

    it("several idle ones all end", function()
      local ended = 0
      vigil.run(function()
        for _ = 1, 20 do
          spawn(await, vigil.timer(10):hide())
            :finally(function() ended = ended + 1 end)
        end
      end)
      assert.equal(20, ended)
    end)
  end)

  describe("in the main chunk", function()
    it("is raised by its wait", function()
      local ch = vigil.channel()
      assert_deadlock(pcall(ch.recv, ch))
    end)

    it("is raised by await", function()
      assert_deadlock(pcall(await, pending()))
    end)

    it("names the main chunk", function()
      local _, err = pcall(await, pending())
      assert.matches("main chunk", tostring(err), 1, true)
    end)

    it("leaves it able to wait again", function()
      pcall(await, pending())
      sleep(0.001)
      assert.equal(1, await(spawn(function() return 1 end)))
    end)

    it("takes the coroutines that are stuck with it", function()
      local caught
      local ch = vigil.channel()
      spawn(function()
        local _
        _, caught = pcall(ch.recv, ch)
      end)
      assert_deadlock(pcall(await, pending()))
      suspend()
      assert.is_true(is_deadlock(caught))
    end)

    it("is not seen while others can still wake it", function()
      local future, promise = vigil.future()
      spawn(function()
        sleep(0.005)
        promise:complete(7)
      end)
      assert.equal(7, await(future))
    end)
  end)
end)

describe("the deadlock report", function()
  local script = [[
    local vigil = require "vigil"
    local ok, err = pcall(vigil.run, function()
      local ch = vigil.channel(2)
      local co = vigil.spawn(function()
        ch:recv() -- line 5
      end) -- spawned: line 4
      co.name = "reader"
      vigil.select { ch:receiving(), (vigil.future()) } -- line 8
    end)
    print(ok, vigil.is_error(err, "deadlock"))
  ]]

  it("lists each one with its places and events on stderr (DL-10, R31)",
    function()
      local code, out, err = helper.run_script(script)
      assert.equal(0, code)
      assert.equal("false\ttrue\n", out)
      assert.matches("deadlock: 2 coroutines", err)
      local reader = err:match "[^\n]*'reader'[^\n]*"
      assert.matches("spawned at [^\n]-:4", reader)
      assert.matches("waits at [^\n]-:5 for channel %(0 of 2", reader)
      local main = err:match "[^\n]*#1 [^\n]*"
      assert.matches("spawned at [^\n]-:2", main)
      assert.matches("waits at [^\n]-:8 for channel [^\n]-, future", main)
    end)

  it("can be switched off; the error is raised all the same (DL-11)",
    function()
      local code, out, err = helper.run_script(
        'require "vigil".configure { warnings = false }\n' .. script)
      assert.equal(0, code)
      assert.equal("false\ttrue\n", out)
      assert.equal("", err)
    end)

  it("names the main chunk where it waits", function()
    local code, _, err = helper.run_script [[
      local vigil = require "vigil"
      vigil.spawn(vigil.await, (vigil.future()))
      vigil.channel():recv()
    ]]
    assert.equal(1, code)
    assert.matches("2 coroutines", err)
    assert.matches("main chunk suspended, waits at [^\n]-:3 for channel", err)
  end)

  it("says itself for one that awaits itself (DL-06)", function()
    local _, _, err = helper.run_script [[
      local vigil = require "vigil"
      vigil.run(function() vigil.await(vigil.current()) end)
    ]]
    assert.matches("for itself", err, 1, true)
  end)

  it("ends a script with status 1 when nobody catches it (DL-01)",
    function()
      local code, _, err = helper.run_script [[
        local vigil = require "vigil"
        vigil.run(function()
          local a, b
          a = vigil.spawn(function() vigil.await(b) end)
          b = vigil.spawn(function() vigil.await(a) end)
        end)
      ]]
      assert.equal(1, code)
      assert.matches("EDEADLOCK", err)
    end)
end)
