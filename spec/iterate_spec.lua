-- vigil.iterate: a function over every element.  DESIGN 3, 5.27, 5.32;
-- SEMANTICS IT; FIELD-REPORTS R50.

local helper = require "spec.helper"
local vigil = require "vigil"

local spawn, suspend, sleep = vigil.spawn, vigil.suspend, vigil.sleep
local await, pawait, iterate = vigil.await, vigil.pawait, vigil.iterate

-- One spec that runs as the main coroutine of a run.
local function spec(name, fn)
  it(name, helper.in_vigil(fn))
end

local function assert_kind(kind, err)
  assert.is_true(vigil.is_error(err, kind),
    kind .. " expected, got " .. tostring(err))
end

-- An iterator over 1 ... n.
local function count_to(n)
  local i = 0
  return function()
    i = i + 1
    if i <= n then return i end
  end
end

describe("iterate", function()
  spec("calls fn(value, key) for every pair of a table (IT-01)", function()
    local seen = {}
    iterate({ "a", "b", x = "c" }, function(value, key) seen[key] = value end)
    assert.same({ "a", "b", x = "c" }, seen)
  end)

  spec("calls fn(value, number) for every value of an iterator (IT-01)",
    function()
      local seen = {}
      iterate(("a b c"):gmatch "%a", function(value, key)
        seen[key] = value
      end)
      assert.same({ "a", "b", "c" }, seen)
    end)

  spec("returns nothing, when all calls have ended (IT-01, IT-05)",
    function()
      local ended = 0
      local n = select("#", iterate({ 3, 1, 2 }, function(v)
        sleep(v / 1000)
        ended = ended + 1
      end))
      assert.equal(3, ended)
      assert.equal(0, n)
    end)

  spec("takes false as a value", function()
    local seen = {}
    iterate({ false, true }, function(v, k) seen[k] = v end)
    assert.same({ false, true }, seen)
  end)

  spec("of nothing returns at once", function()
    local ran = false
    iterate({}, function() ran = true end)
    iterate(function() end, function() ran = true end)
    assert.is_false(ran)
  end)

  spec("honours __pairs", function()
    local seen = {}
    iterate(setmetatable({}, { __pairs = function()
      return next, { a = 1, b = 2 }
    end }), function(v, k) seen[k] = v end)
    assert.same({ a = 1, b = 2 }, seen)
  end)

  spec("takes a generator that waits (IT-09)", function()
    local seen = {}
    iterate(vigil.coroutine.wrap(function()
      for i = 1, 5 do
        sleep(0.0005)
        vigil.coroutine.yield(i)
      end
    end), function(v)
      sleep(0.001)
      seen[#seen + 1] = v
    end)
    table.sort(seen)
    assert.same({ 1, 2, 3, 4, 5 }, seen)
  end)

  spec("moves a waiting iterator in one coroutine at a time (IT-09)",
    function()
      local inside, i, seen = false, 0, {}
      iterate(function()
        assert(not inside, "the iterator was entered twice")
        inside = true
        sleep(0.0002)
        inside = false
        i = i + 1
        if i <= 20 then return i end
      end, function(v)
        sleep(0.0005)
        assert(not seen[v], "doubled")
        seen[v] = true
      end)
      assert.equal(20, #seen) -- none skipped
    end)

  it("works in the main chunk", function()
    local seen = {}
    iterate({ 1, 2 }, function(v)
      sleep(0.001)
      seen[v] = true
    end)
    assert.same({ true, true }, seen)
  end)

  spec("may be nested", function()
    local sum = 0
    iterate({ 10, 20 }, function(a)
      iterate({ 1, 2 }, function(b)
        suspend()
        sum = sum + a + b
      end)
    end)
    assert.equal(66, sum)
  end)

  spec("goes over 10,000 elements that suspend", function()
    local sum = 0
    iterate(count_to(10000), function(v)
      suspend()
      sum = sum + v
    end)
    assert.equal(50005000, sum)
  end)
end)

describe("concurrency", function()
  local function most(options, n)
    local now, highest = 0, 0
    iterate(count_to(n), function()
      now = now + 1
      if now > highest then highest = now end
      sleep(0.003)
      now = now - 1
    end, options)
    return highest
  end

  spec("has no limit by default: calls overlap (IT-04)", function()
    assert.equal(10, most(nil, 10))
  end)

  spec("is limited as asked", function()
    assert.equal(3, most({ concurrency = 3 }, 20))
  end)

  spec("of 1 is one after another, in order", function()
    local log = {}
    iterate({ 1, 2, 3 }, function(v)
      log[#log + 1] = "+" .. v
      suspend()
      log[#log + 1] = "-" .. v
    end, { concurrency = 1 })
    assert.same({ "+1", "-1", "+2", "-2", "+3", "-3" }, log)
  end)

  spec("is one coroutine for calls that never suspend (IT-04)", function()
    local who = {}
    iterate(count_to(50), function() who[vigil.current()] = true end)
    local n = 0
    for _ in pairs(who) do n = n + 1 end
    assert.equal(1, n)
  end)

  spec("starts the next element while one waits (IT-04)", function()
    local log = {}
    iterate({ "slow", "quick" }, function(v)
      if v == "slow" then sleep(0.003) end
      log[#log + 1] = v
    end)
    assert.same({ "quick", "slow" }, log)
  end)
end)

describe("returning false", function()
  spec("stops: no new calls (IT-02)", function()
    local calls = 0
    iterate(count_to(100), function(v)
      calls = calls + 1
      if v == 3 then return false end
    end)
    assert.equal(3, calls)
  end)

  spec("lets those that run finish (IT-02)", function()
    local finished = {}
    iterate({ 1, 2, 3 }, function(v)
      if v == 3 then return false end
      sleep(0.002)
      finished[#finished + 1] = v
    end)
    table.sort(finished)
    assert.same({ 1, 2 }, finished)
  end)

  spec("is not the same as returning nil", function()
    local calls = 0
    iterate({ 1, 2, 3 }, function()
      calls = calls + 1
      return nil
    end)
    assert.equal(3, calls)
  end)

  spec("does not move the iterator again (IT-02)", function()
    local moved = 0
    iterate(function()
      moved = moved + 1
      return moved
    end, function(v) return v < 5 end)
    assert.equal(5, moved)
  end)
end)

describe("an error of fn", function()
  spec("is raised from iterate, unchanged (IT-06)", function()
    local err = {}
    local ok, got = pcall(iterate, { 1 }, function() error(err) end)
    assert.is_false(ok)
    assert.equal(err, got)
  end)

  spec("is raised though nobody has waited yet (IT-06)", function()
    local ok, got = pcall(iterate, { 1, 2, 3 }, function()
      error("first", 0)
    end)
    assert.is_false(ok)
    assert.equal("first", got)
  end)

  spec("is raised after a wait (IT-06)", function()
    local ok, got = pcall(iterate, { 1, 2, 3 }, function(v)
      sleep(v / 1000)
      if v == 2 then error("two", 0) end
    end)
    assert.is_false(ok)
    assert.equal("two", got)
  end)

  spec("of nil is raised, too", function()
    local ok, got = pcall(iterate, { 1 }, function() error(nil) end)
    assert.is_false(ok)
    assert.is_nil(got)
  end)

  spec("stops the iteration (IT-06)", function()
    local calls = 0
    pcall(iterate, count_to(100), function(v)
      calls = calls + 1
      if v == 3 then error "stop" end
    end)
    assert.equal(3, calls)
  end)

  spec("cancels the other calls and waits for their end (IT-06)", function()
    local cleaned, finished = 0, 0
    local ok = pcall(iterate, { 1, 2, 3 }, function(v)
      if v == 3 then
        suspend()
        error "three"
      end
      local guard <close> = setmetatable({}, { __close = function()
        vigil.protect(function() sleep(0.001) end)
        cleaned = cleaned + 1
      end })
      sleep(9)
      finished = finished + 1
      return guard
    end)
    assert.is_false(ok)
    assert.equal(2, cleaned)
    assert.equal(0, finished)
  end)

  spec("of two calls: the first in time (IT-06)", function()
    local ok, got = pcall(iterate, { 2, 1 }, function(v)
      for _ = 1, v do suspend() end
      error("e" .. v, 0)
    end)
    assert.is_false(ok)
    assert.equal("e1", got)
  end)

  spec("does not cancel the caller's siblings (IT-08)", function()
    local sibling = spawn(function()
      sleep(0.003)
      return "fine"
    end)
    assert.is_false(pcall(iterate, { 1 }, function()
      suspend()
      error "e"
    end))
    assert.equal("fine", await(sibling))
  end)
end)

describe("an error of the iterator", function()
  spec("is raised from iterate, unchanged (AW-26)", function()
    local err, n = {}, 0
    local ok, got = pcall(iterate, function()
      n = n + 1
      if n == 3 then error(err) end
      return n
    end, function() suspend() end)
    assert.is_false(ok)
    assert.equal(err, got)
  end)

  spec("at its first step is raised", function()
    local ok, got = pcall(iterate, function() error("at once", 0) end, print)
    assert.is_false(ok)
    assert.equal("at once", got)
  end)

  spec("cancels the calls that run", function()
    local finished, n = false, 0
    assert.is_false(pcall(iterate, function()
      n = n + 1
      if n == 2 then error "e" end
      return n
    end, function()
      sleep(9)
      finished = true
    end))
    assert.is_false(finished)
  end)
end)

describe("coroutines spawned in fn", function()
  spec("are cancelled at the end by default (IT-07, R50)", function()
    local child, finished
    iterate({ 1 }, function()
      child = spawn(function()
        sleep(9)
        finished = true
      end)
      suspend()
    end)
    assert.is_nil(finished)
    assert.equal("cancelled", child.state)
  end)

  spec("are waited for when asked (IT-07)", function()
    local finished
    iterate({ 1 }, function()
      spawn(function()
        sleep(0.003)
        finished = true
      end)
    end, { wait_children = true })
    assert.is_true(finished)
  end)

  spec("do not outlive the call, while they clean up (IT-07, R50)",
    function()
      local cleaned
      iterate({ 1 }, function()
        spawn(function()
          local guard <close> = setmetatable({}, { __close = function()
            vigil.protect(function()
              sleep(0.002)
              cleaned = true
            end)
          end })
          sleep(9)
          return guard
        end)
        suspend()
      end)
      assert.is_true(cleaned)
    end)

  spec("fail into the call: raised, the others cancelled (IT-08)",
    function()
      local finished
      local ok, got = pcall(iterate, { 1, 2 }, function(v)
        if v == 1 then
          spawn(function()
            suspend()
            error("child", 0)
          end)
        end
        sleep(9)
        finished = true
      end)
      assert.is_false(ok)
      assert.equal("child", got)
      assert.is_nil(finished)
    end)

  spec("that fail after the last call are raised when waited for",
    function()
      local ok, got = pcall(iterate, { 1 }, function()
        spawn(function()
          sleep(0.002)
          error("late child", 0)
        end)
      end, { wait_children = true })
      assert.is_false(ok)
      assert.equal("late child", got)
    end)
end)

describe("cancellation of iterate", function()
  spec("ends all calls and raises (IT-07)", function()
    local states = {}
    local co = spawn(function()
      iterate({ 1, 2, 3 }, function(v)
        local guard <close> = setmetatable({}, { __close = function()
          states[v] = "ended"
        end })
        sleep(9)
        return guard
      end)
    end)
    for _ = 1, 10 do suspend() end
    co:cancel "stop"
    local ok, err = pawait(co)
    assert.is_false(ok)
    assert.equal("stop", err.message)
    assert.same({ "ended", "ended", "ended" }, states)
    assert.equal("cancelled", co.state)
  end)

  spec("before it begins calls nothing (DESIGN 5.5)", function()
    local called = false
    local co = spawn(function()
      vigil.current():cancel()
      iterate({ 1 }, function() called = true end)
    end)
    assert.is_false((pawait(co)))
    assert.is_false(called)
  end)

  spec("by a timeout around it", function()
    local ok, err = pcall(vigil.with_timeout, 0.002, iterate, { 1 },
      function() sleep(9) end)
    assert.is_false(ok)
    assert_kind("timeout", err)
  end)

  spec("of one call only is an error of that call", function()
    local ok, err = pcall(iterate, { 1, 2 }, function(v)
      suspend()
      if v == 1 then
        vigil.current():cancel "only me"
        suspend()
      end
      sleep(9)
    end)
    assert.is_false(ok)
    assert_kind("cancelled", err)
    assert.equal("only me", err.message)
  end)

  it("by a shutdown ends it in time (R60)", function()
    local code, out = helper.run_script [[
      local vigil = require "vigil"
      local start = vigil.now()
      vigil.run(function()
        vigil.spawn(function()
          vigil.sleep(0.002)
          vigil.shutdown()
        end)
        vigil.iterate({ 1, 2, 3 }, function() vigil.sleep(60) end)
      end)
      print(vigil.now() - start < 5)
    ]]
    assert.equal(0, code)
    assert.equal("true\n", out)
  end)
end)

describe("misuse of iterate", function()
  local function refused(text, ...)
    local ok, err = pcall(iterate, ...)
    assert.is_false(ok)
    assert.matches(text, err)
  end

  spec("is refused: no collection", function()
    refused("bad argument #1 to 'iterate'", 42, print)
  end)

  spec("is refused: no function", function()
    refused("bad argument #2 to 'iterate'", {}, nil)
  end)

  spec("is refused: options that are none", function()
    refused("bad argument #3 to 'iterate'", {}, print, 5)
  end)

  spec("is refused: a concurrency that is none", function()
    refused("concurrency", {}, print, { concurrency = 0 })
    refused("concurrency", {}, print, { concurrency = "3" })
  end)
end)

describe("a call of iterate that nothing can end", function()
  it("is a deadlock (R31)", function()
    local code, out = helper.run_script [[
      local vigil = require "vigil"
      vigil.configure { warnings = false }
      local ok, err = pcall(vigil.run, function()
        vigil.iterate({ 1, 2 }, function() vigil.channel():recv() end)
      end)
      print(ok, err.kind)
    ]]
    assert.equal(0, code)
    assert.equal("false\tdeadlock\n", out)
  end)

  it("refuses an option that it does not know, by name", function()
    local ok, err = pcall(vigil.run, function()
      vigil.iterate({}, print, { concurency = 1 })
    end)
    assert.is_false(ok)
    assert.matches("#3 to 'iterate' %(unknown option 'concurency'%)", err)
  end)
end)
