-- The end of a run that is asked for: DESIGN 2.4; SEMANTICS GS; FIELD-REPORTS
-- R60.

local helper = require "spec.helper"
local vigil = require "vigil"

local spawn, sleep, suspend = vigil.spawn, vigil.sleep, vigil.suspend
local await, pawait = vigil.await, vigil.pawait

local function assert_cancelled(err)
  assert.is_true(vigil.is_error(err, "cancelled"),
    "cancellation expected, got " .. tostring(err))
end

describe("vigil.shutdown", function()
  it("lets its caller go on to the next suspension (GS-05)", function()
    local after, beyond = false, false
    vigil.run(function()
      vigil.shutdown()
      after = true
      suspend()
      beyond = true
    end)
    assert.is_true(after)
    assert.is_false(beyond)
  end)

  it("makes run return nil and the cancellation", function()
    local result, err = vigil.run(function()
      vigil.shutdown()
      suspend()
    end)
    assert.is_nil(result)
    assert_cancelled(err)
  end)

  it("leaves run its results when the main coroutine has ended", function()
    assert.equal("result", vigil.run(function()
      spawn(function()
        sleep(0.001)
        vigil.shutdown()
        suspend()
      end)
      return "result"
    end))
  end)

  it("ends a loop of suspends elsewhere (GS-05)", function()
    local rounds = 0
    vigil.run(function()
      spawn(function()
        while true do
          rounds = rounds + 1
          suspend()
        end
      end)
      suspend()
      vigil.shutdown()
    end)
    assert.is_true(rounds > 0)
  end)

  it("wakes all that wait, on whatever it is (R60)", function()
    local before, woken = vigil.now(), 0
    vigil.run(function()
      local ch, full = vigil.channel(), vigil.channel(1)
      local never = vigil.future()
      full:send(1)
      local waits = {
        function() sleep(3600) end,
        function() ch:recv() end,
        function() full:send(2) end,
        function() await(never) end,
        function() await(vigil.timer(3600)) end,
        function() vigil.select { ch:receiving(), never } end,
        function() vigil.await_all { never } end,
        function() await(never, 3600) end,
        function() vigil.with_timeout(3600, await, never) end,
        function() vigil.coroutine.wrap(sleep)(3600) end,
      }
      for i = 1, 100 do
        spawn(function()
          local _, err = pcall(waits[i % #waits + 1])
          if vigil.is_error(err, "cancelled") then woken = woken + 1 end
        end)
      end
      suspend()
      vigil.shutdown()
    end)
    assert.equal(100, woken)
    assert.is_true(vigil.now() - before < 1)
  end)

  it("lets each one clean up under protect (R60)", function()
    local cleaned = 0
    vigil.run(function()
      for _ = 1, 10 do
        spawn(function()
          local _ <close> = setmetatable({}, { __close = function()
            vigil.protect(function()
              sleep(0.001)
              cleaned = cleaned + 1
            end)
          end })
          sleep(3600)
        end)
      end
      suspend()
      vigil.shutdown()
    end)
    assert.equal(10, cleaned)
  end)

  it("runs finally handlers, which may wait (R60)", function()
    local done = 0
    vigil.run(function()
      for _ = 1, 10 do
        spawn(sleep, 3600):finally(function()
          sleep(0.001)
          done = done + 1
        end)
      end
      suspend()
      vigil.shutdown()
    end)
    assert.equal(10, done)
  end)

  it("does not stop finally handlers that have begun (ruling 13)", function()
    local done = false
    vigil.run(function()
      spawn(function() end):finally(function()
        sleep(0.003)
        done = true
      end)
      sleep(0.001)
      vigil.shutdown()
    end)
    assert.is_true(done)
  end)

  it("does not stop finally handlers that are about to begin (ruling 13)",
    function()
      local done = false
      vigil.run(function()
        spawn(vigil.shutdown):finally(function() done = true end)
        sleep(10)
      end)
      assert.is_true(done)
    end)

  it("waits for what is protected", function()
    local finished = false
    vigil.run(function()
      spawn(vigil.protect, function()
        sleep(0.005)
        finished = true
      end)
      suspend()
      vigil.shutdown()
    end)
    assert.is_true(finished)
  end)

  it("does not start what has not started", function()
    local ran = false
    vigil.run(function()
      spawn(function() ran = true end)
      vigil.shutdown()
    end)
    assert.is_false(ran)
  end)

  it("does not start what is spawned during it", function()
    local ran, co = false, nil
    vigil.run(function()
      vigil.shutdown()
      co = spawn(function() ran = true end)
    end)
    assert.is_false(ran)
    assert.equal("cancelled", co.state)
  end)

  it("may be called twice", function()
    vigil.run(function()
      vigil.shutdown()
      vigil.shutdown()
      assert.is_false((pcall(suspend)))
    end)
  end)

  it("may be called from a finalizer", function()
    local before = vigil.now()
    vigil.run(function()
      spawn(sleep, 3600)
      suspend()
      setmetatable({}, { __gc = function() vigil.shutdown() end })
      collectgarbage()
      collectgarbage()
    end)
    assert.is_true(vigil.now() - before < 1)
  end)

  it("raises nothing for coroutines that nobody awaits (GS-06)", function()
    local told = 0
    vigil.on_unhandled(function() told = told + 1 end)
    local ok = pcall(vigil.run, function()
      for _ = 1, 5 do spawn(sleep, 3600) end
      suspend()
      vigil.shutdown()
    end)
    vigil.on_unhandled(nil)
    assert.is_true(ok)
    assert.equal(0, told)
  end)

  it("an error while cleaning up fails the run (GS-04)", function()
    local ok, err = pcall(vigil.run, function()
      spawn(function()
        pcall(sleep, 3600)
        error("in clean-up", 0)
      end)
      suspend()
      vigil.shutdown()
    end)
    assert.is_false(ok)
    assert.equal("in clean-up", err)
  end)

  it("gives awaiters of a cancelled one its cancellation", function()
    local seen
    vigil.run(function()
      local child = spawn(sleep, 3600)
      suspend()
      vigil.protect(function()
        vigil.shutdown()
        local _
        _, seen = pawait(child)
      end)
    end)
    assert_cancelled(seen)
  end)

  it("is over with its run: the next one works (GS-10)", function()
    vigil.run(function()
      spawn(sleep, 3600)
      vigil.shutdown()
    end)
    assert.equal("fine", vigil.run(function()
      return await(spawn(function()
        sleep(0.001)
        return "fine"
      end))
    end))
  end)

  it("with nothing to shut down changes nothing (GS-10)", function()
    vigil.shutdown()
    assert.equal("fine", vigil.run(function()
      return await(spawn(function() return "fine" end))
    end))
  end)

  it("from the main chunk cancels what waits", function()
    local co = spawn(sleep, 3600)
    suspend()
    vigil.shutdown()
    local ok, err = pawait(co)
    assert.is_false(ok)
    assert_cancelled(err)
  end)

  it("leaves the main chunk's own waits alone", function()
    spawn(sleep, 3600)
    suspend()
    vigil.shutdown()
    sleep(0.002)
    assert.equal(1, await(spawn(function() return 1 end)))
  end)

  it("ends a script with status 0", function()
    local code, out, err = helper.run_script [[
      local vigil = require "vigil"
      vigil.run(function()
        vigil.spawn(function()
          local ok, e = pcall(vigil.sleep, 3600)
          print(ok, e.kind)
        end)
        vigil.sleep(0.001)
        vigil.shutdown()
      end)
      print "end"
    ]]
    assert.equal("", err)
    assert.equal("false\tcancelled\nend\n", out)
    assert.equal(0, code)
  end)
end)

describe("at the end of a run", function()
  it("nothing keeps it alive but coroutines (GS-09)", function()
    local before = vigil.now()
    vigil.run(function()
      local ch = vigil.channel()
      local future = vigil.future()
      vigil.select { ch:receiving(), future, default = true }
      return vigil.timer(3600), vigil.timer(3600, 1)
    end)
    assert.is_true(vigil.now() - before < 1)
  end)

  it("a stack overflow fails its coroutine, the rest goes on (GS-11)",
    function()
      local code, out = helper.run_script [[
        local vigil = require "vigil"
        vigil.run(function()
          local other = vigil.spawn(function()
            vigil.sleep(0.005)
            return "other"
          end)
          local function deep() return 1 + deep() end
          print(vigil.pawait(vigil.spawn(deep)) == false)
          print(vigil.await(other))
        end)
      ]]
      assert.equal("true\nother\n", out)
      assert.equal(0, code)
    end)

  it("lack of memory fails its coroutine, the rest goes on (GS-11)",
    function()
      local code, out = helper.run_script([[
        local vigil = require "vigil"
        vigil.run(function()
          local co = vigil.spawn(function()
            vigil.suspend()
            return io.open("/dev/null"):read(1 << 46)
          end)
          local ok, err = vigil.pawait(co)
          print(ok, co.state, err)
          print(vigil.await(vigil.spawn(function() return "other" end)))
        end)
      ]], { env = { ASAN_OPTIONS = "allocator_may_return_null=1" } })
      assert.equal("false\tfailed\tnot enough memory\nother\n", out)
      assert.equal(0, code)
    end)
end)
