-- Where errors go: DESIGN 3, rulings 1 to 3, 8; SEMANTICS GS-01, CO-11;
-- FIELD-REPORTS theme B.

local helper = require "spec.helper"
local vigil = require "vigil"

local spawn, sleep, suspend = vigil.spawn, vigil.sleep, vigil.suspend
local await, pawait = vigil.await, vigil.pawait

local function spec(name, fn)
  it(name, helper.in_vigil(fn))
end

-- Runs fn with a hook; returns ok, error of the run, and what the hook got:
-- a list of { error, info }.
local function run_hooked(fn)
  local told = {}
  vigil.on_unhandled(function(err, info) told[#told + 1] = { err, info } end)
  local ok, err = pcall(vigil.run, fn)
  vigil.on_unhandled(nil)
  return ok, err, told
end

-- An error object of the kind timeout.
local function timeout_error()
  local _, err = pcall(vigil.with_timeout, 0, sleep, 1)
  return err
end

describe("error objects", function()
  spec("have kind, code and message", function()
    local err = timeout_error()
    assert.equal("timeout", err.kind)
    assert.equal("ETIMEDOUT", err.code)
    assert.is_string(err.message)
  end)

  spec("are one readable line as a string", function()
    local err = timeout_error()
    assert.equal("ETIMEDOUT: timed out", tostring(err))
  end)

  spec("are told by is_error", function()
    assert.is_true(vigil.is_error(timeout_error()))
  end)

  spec("are told by is_error with their kind", function()
    assert.is_true(vigil.is_error(timeout_error(), "timeout"))
    assert.is_false(vigil.is_error(timeout_error(), "cancelled"))
  end)

  for name, value in pairs { ["a string"] = "x", ["a number"] = 1,
    ["a table"] = { kind = "timeout" }, ["true"] = true, ["false"] = false,
    ["a function"] = print } do
    spec("are not " .. name, function()
      assert.is_false(vigil.is_error(value))
      assert.is_false(vigil.is_error(value, "timeout"))
    end)
  end

  spec("are not nil", function()
    assert.is_false(vigil.is_error(nil))
  end)

  spec("of a closed channel are of kind closed (ruling 8)", function()
    local ch = vigil.channel()
    ch:close()
    local value, err = ch:recv()
    assert.is_nil(value)
    assert.equal("closed", err.kind)
    assert.is_string(err.code)
  end)

  spec("get a traceback when they end a coroutine", function()
    local function raising_frame() error(timeout_error()) end
    local co = spawn(function() raising_frame() end)
    local _, err = pawait(co)
    assert.matches("raising_frame", err.traceback)
  end)

  spec("keep their first traceback", function()
    local err = timeout_error()
    local a = spawn(function() error(err) end)
    pawait(a)
    local first = err.traceback
    local b = spawn(function() local x = error(err) return x end)
    pawait(b)
    assert.equal(first, err.traceback)
  end)
end)

describe("any value raised", function()
  local values = { { "nil", nil }, { "false", false }, { "true", true },
    { "a number", 42 }, { "a string", "text" }, { "a table", {} },
    { "a function", function() end }, { "a thread", coroutine.create(print) },
    { "a userdata", io.stdout } }

  for _, case in ipairs(values) do
    local name, value = case[1], case[2]

    spec(name .. " arrives at await as it is", function()
      local ok, err = pcall(await, spawn(error, value))
      assert.is_false(ok)
      assert.is_true(rawequal(value, err))
    end)

    spec(name .. " arrives at pawait as it is", function()
      local count, ok, err = (function(...)
        return select("#", ...), ...
      end)(pawait(spawn(error, value)))
      assert.equal(2, count)
      assert.is_false(ok)
      assert.is_true(rawequal(value, err))
    end)

    it(name .. " arrives at run as it is", function()
      local ok, err = pcall(vigil.run, function()
        suspend()
        error(value, 0)
      end)
      assert.is_false(ok)
      assert.is_true(rawequal(value, err))
    end)

    it(name .. " of an unawaited child arrives at run as it is", function()
      local ok, err = pcall(vigil.run, function()
        spawn(error, value)
        sleep(10)
      end)
      assert.is_false(ok)
      assert.is_true(rawequal(value, err))
    end)
  end

  spec("arrives after a wait as well", function()
    local value = {}
    local _, err = pawait(spawn(function()
      sleep(0.001)
      error(value)
    end))
    assert.equal(value, err)
  end)

  spec("arrives through a chain of awaits unchanged", function()
    local value = {}
    local function go(n)
      if n == 0 then error(value) end
      return await(spawn(go, n - 1))
    end
    local _, err = pawait(spawn(go, 20))
    assert.equal(value, err)
  end)

  spec("arrives at each of several awaiters (AW-09)", function()
    local value = {}
    local child = spawn(function()
      sleep(0.001)
      error(value)
    end)
    local a, b = spawn(pawait, child), spawn(pawait, child)
    assert.same({ false, value }, { await(a) })
    assert.same({ false, value }, { await(b) })
    assert.same({ false, value }, { pawait(child) })
  end)
end)

describe("an error that nobody awaits", function()
  it("fails the run (R15)", function()
    local ok, err = pcall(vigil.run, function()
      spawn(error, "lost")
      sleep(10)
    end)
    assert.is_false(ok)
    assert.equal("lost", err)
  end)

  it("fails the run after the main coroutine has ended (R15)", function()
    local ok, err = pcall(vigil.run, function()
      spawn(function()
        sleep(0.001)
        error("late", 0)
      end)
      return "fine"
    end)
    assert.is_false(ok)
    assert.equal("late", err)
  end)

  it("cancels the others, which may clean up (GS-01)", function()
    local cleaned = false
    pcall(vigil.run, function()
      spawn(function()
        pcall(sleep, 10)
        vigil.protect(function() sleep(0.002) end)
        cleaned = true
      end)
      suspend()
      spawn(error, "lost")
    end)
    assert.is_true(cleaned)
  end)

  it("fails the run although it is awaited later (ruling 2)", function()
    local ok, err = pcall(vigil.run, function()
      local co = spawn(error, "early")
      suspend()
      return pawait(co)
    end)
    assert.is_false(ok)
    assert.equal("early", err)
  end)

  it("comes to light when its awaiter was cancelled (AW-10)", function()
    local ok, err = pcall(vigil.run, function()
      local child = spawn(function()
        sleep(0.002)
        error("orphan", 0)
      end)
      local parent = spawn(await, child)
      suspend()
      parent:cancel()
    end)
    assert.is_false(ok)
    assert.equal("orphan", err)
  end)

  it("the first one is the run's; later ones are reported (GS-04)",
    function()
      local ok, err, told = run_hooked(function()
        spawn(function()
          pcall(sleep, 10)
          error("second", 0)
        end)
        suspend()
        spawn(error, "first")
        sleep(10)
      end)
      assert.is_false(ok)
      assert.equal("first", err)
      assert.equal("first", told[1][1])
      assert.equal("second", told[2][1])
      assert.equal(2, #told)
    end)

  spec("is none when it is awaited", function()
    assert.is_false((pawait(spawn(error, "taken"))))
  end)

  spec("is none when it is a member of await_all (ruling 2)", function()
    local _, errors = vigil.await_all { spawn(error, "taken"),
      spawn(function() return 1 end) }
    assert.equal("taken", errors[1])
  end)

  spec("is none when one of two awaiters is left", function()
    local child = spawn(function()
      sleep(0.001)
      error("taken", 0)
    end)
    local a, b = spawn(pawait, child), spawn(pawait, child)
    suspend()
    a:cancel()
    assert.same({ false, "taken" }, { await(b) })
  end)

  spec("of 5 members leaves 4 results and 1 failure (R22)", function()
    local list = {}
    for i = 1, 5 do
      list[i] = spawn(function()
        sleep(i / 2000)
        if i == 3 then error("three", 0) end
        return i
      end)
    end
    local results, errors = vigil.await_all(list)
    assert.same({ 1, 2, nil, 4, 5 }, results)
    assert.same({ [3] = "three" }, errors)
  end)
end)

describe("on_unhandled", function()
  it("is given the error and its traceback (R15)", function()
    local value = {}
    local _, _, told = run_hooked(function()
      spawn(function()
        local function failing_frame() error(value) end
        failing_frame()
      end)
    end)
    assert.equal(value, told[1][1])
    assert.matches("failing_frame", told[1][2].traceback)
  end)

  it("is given the frames of an error three calls deep, after a sleep, and "
    .. "the spawn place (R20)", function()
    local _, _, told = run_hooked(function()
      local function third_frame() error("deep") end
      local function second_frame() third_frame() return 1 end
      local function first_frame() second_frame() return 1 end
      spawn(function()
        sleep(0.001)
        first_frame()
      end)
    end)
    local info = told[1][2]
    assert.matches("third_frame", info.traceback)
    assert.matches("second_frame", info.traceback)
    assert.matches("first_frame", info.traceback)
    assert.matches("spawned at [^\n]*error_spec.lua:%d+", info.what)
  end)

  it("is told which coroutine it was by its name (R20)", function()
    local _, _, told = run_hooked(function()
      spawn(error, "x").name = "worker"
    end)
    assert.matches("'worker'", told[1][2].what)
  end)

  it("is not called for what is awaited", function()
    local _, _, told = run_hooked(function()
      pawait(spawn(error, "taken"))
    end)
    assert.equal(0, #told)
  end)

  it("is not called for cancellations (GS-06)", function()
    local ok, _, told = run_hooked(function()
      local co = spawn(sleep, 10)
      suspend()
      co:cancel()
    end)
    assert.is_true(ok)
    assert.equal(0, #told)
  end)

  it("leaves the run failing all the same", function()
    local ok, err = run_hooked(function() spawn(error, "x") end)
    assert.is_false(ok)
    assert.equal("x", err)
  end)

  it("is given the error of a failed future that nobody caught (ruling 3)",
    function()
      local _, _, told = run_hooked(function()
        do
          local _, promise = vigil.future()
          promise:fail("uncaught")
        end
        collectgarbage()
        collectgarbage()
      end)
      assert.equal("uncaught", told[1] and told[1][1])
    end)

  it("can be taken off", function()
    local called = false
    vigil.on_unhandled(function() called = true end)
    vigil.on_unhandled(nil)
    pcall(vigil.run, function() spawn(error, "x") end)
    assert.is_false(called)
  end)

  it("refuses what is not a function", function()
    assert.is_false((pcall(vigil.on_unhandled, 5)))
  end)

  it("that waits is told that it cannot", function()
    local refusal
    vigil.on_unhandled(function()
      local _
      _, refusal = pcall(sleep, 0.001)
    end)
    pcall(vigil.run, function() spawn(error, "x") end)
    vigil.on_unhandled(nil)
    assert.matches("vigil.sleep", refusal, 1, true)
  end)

  it("may spawn into the run, which is about to be cancelled", function()
    local co
    vigil.on_unhandled(function()
      vigil.on_unhandled(nil)
      co = spawn(suspend)
    end)
    pcall(vigil.run, function()
      spawn(error, "x")
      sleep(10)
    end)
    vigil.on_unhandled(nil)
    assert.equal("cancelled", co.state)
  end)

  it("that raises gives one report of both, and the scheduler goes on (R20)",
    function()
      local code, out, err = helper.run_script [[
        local vigil = require "vigil"
        vigil.on_unhandled(function() error("in the hook", 0) end)
        print(pcall(vigil.run, function()
          vigil.spawn(function()
            pcall(vigil.sleep, 10)
            vigil.protect(function() vigil.sleep(0.001) end)
            print "cleaned"
          end)
          vigil.suspend()
          vigil.spawn(error, "the error")
        end))
      ]]
      assert.equal(0, code)
      assert.equal("cleaned\nfalse\tthe error\n", out)
      assert.matches("the error", err)
      assert.matches("in the hook", err)
    end)
end)

describe("clean-up that raises", function()
  local function closing(fn)
    return setmetatable({}, { __close = fn })
  end

  spec("does not replace the first error (ruling 1)", function()
    vigil.on_unhandled(function() end)
    vigil.configure { warnings = false }
    local co = spawn(function()
      local _ <close> = closing(function() error("second", 0) end)
      error("first", 0)
    end)
    local _, err = pawait(co)
    vigil.configure { warnings = true }
    vigil.on_unhandled(nil)
    assert.equal("first", err)
  end)

  it("is reported (ruling 1)", function()
    local _, _, told = run_hooked(function()
      pawait(spawn(function()
        local _ <close> = closing(function() error("second", 0) end)
        error("first", 0)
      end))
    end)
    assert.equal(1, #told)
    assert.equal("second", told[1][1])
    assert.matches("while another error unwound", told[1][2].what)
  end)

  it("keeps the first traceback (ruling 1)", function()
    local co
    run_hooked(function()
      co = spawn(function()
        local _ <close> = closing(function() error("second", 0) end)
        local function first_place() error("first", 0) end
        first_place()
      end)
      pawait(co)
    end)
    assert.matches("first_place", co:traceback())
  end)

  spec("after a normal return is the error", function()
    local _, err = pawait(spawn(function()
      local _ <close> = closing(function() error("only", 0) end)
      return 1
    end))
    assert.equal("only", err)
  end)

  spec("gets the error that is on its way as its argument", function()
    local value, seen = {}, nil
    pawait(spawn(function()
      local _ <close> = closing(function(_, err) seen = err end)
      suspend()
      error(value)
    end))
    assert.equal(value, seen)
  end)

  spec("may await while the error unwinds (ruling 1)", function()
    local result
    local _, err = pawait(spawn(function()
      local _ <close> = closing(function()
        result = await(spawn(function() sleep(0.001) return 5 end))
      end)
      error("first", 0)
    end))
    assert.equal("first", err)
    assert.equal(5, result)
  end)
end)

describe("tracebacks (R20)", function()
  spec("of an error below pcall and rethrown are the first one's", function()
    local co = spawn(function()
      local function place_of_origin() error("bad", 0) end
      vigil.with_timeout(1, function() place_of_origin() end)
    end)
    pawait(co)
    assert.matches("place_of_origin", co:traceback())
  end)

  spec("of an error in a generator name the generator's frame", function()
    local co = spawn(function()
      local step = vigil.coroutine.wrap(function()
        suspend()
        error("in generator")
      end)
      step()
    end)
    local _, err = pawait(co)
    assert.matches("in generator", err)
    assert.is_string(co:traceback())
  end)
end)

describe("a script", function()
  it("whose child fails ends with status 1 and the error on stderr (R15)",
    function()
      local code, _, err = helper.run_script [[
        local vigil = require "vigil"
        vigil.run(function()
          vigil.spawn(function() error("from child") end)
        end)
      ]]
      assert.equal(1, code)
      assert.matches("from child", err)
    end)

  it("that catches the failed run goes on (R15)", function()
    local code, out = helper.run_script [[
      local vigil = require "vigil"
      print(pcall(vigil.run, function() vigil.spawn(error, "x") end))
      vigil.run(function() vigil.sleep(0.001) end)
      print "alive"
    ]]
    assert.equal(0, code)
    assert.equal("false\tx\nalive\n", out)
  end)

  it("gets later errors on stderr, with traceback and spawn place (R20)",
    function()
      local _, _, err = helper.run_script [[
        local vigil = require "vigil"
        local function deep_frame() error("second") end
        pcall(vigil.run, function()
          vigil.spawn(function()
            pcall(vigil.sleep, 10)
            deep_frame()
          end)
          vigil.suspend()
          error("first")
        end)
      ]]
      assert.matches("second", err)
      assert.matches("deep_frame", err)
      assert.matches("spawned at [^\n]-:4", err)
    end)

  it("with warnings off gets nothing on stderr", function()
    local _, _, err = helper.run_script [[
      local vigil = require "vigil"
      vigil.configure { warnings = false }
      pcall(vigil.run, function()
        vigil.spawn(function()
          pcall(vigil.sleep, 10)
          error("two")
        end)
        vigil.suspend()
        vigil.spawn(error, "one")
      end)
    ]]
    assert.equal("", err)
  end)

  it("raising a value whose __tostring fails is still reported", function()
    local code, _, err = helper.run_script [[
      local vigil = require "vigil"
      local bad = setmetatable({}, { __tostring = function() error "no" end })
      pcall(vigil.run, function()
        vigil.spawn(function()
          pcall(vigil.sleep, 10)
          error(bad)
        end)
        vigil.suspend()
        vigil.spawn(error, "one")
      end)
    ]]
    assert.equal(0, code)
    assert.matches("unhandled error", err)
  end)

  it("with a failed future nobody caught has one report (ruling 3)",
    function()
      local code, _, err = helper.run_script [[
        local vigil = require "vigil"
        do
          local _, promise = vigil.future()
          promise:fail("uncaught")
        end
      ]]
      assert.equal(0, code)
      local _, count = err:gsub("uncaught", "")
      assert.equal(1, count)
    end)
end)

describe("configure", function()
  it("refuses an unknown setting by name", function()
    local ok, err = pcall(vigil.configure, { no_such = 1 })
    assert.is_false(ok)
    assert.matches("no_such", err)
  end)

  it("refuses what is not a table", function()
    assert.is_false((pcall(vigil.configure, 5)))
  end)
end)
