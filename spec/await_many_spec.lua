-- Waiting for many: the await_* family.  DESIGN 3, 5.2, 5.27; SEMANTICS AW;
-- FIELD-REPORTS R22.

local core = require "vigil.core"
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
  for _ = 1, 4 do suspend() end
end

local function assert_kind(kind, err)
  assert.is_true(vigil.is_error(err, kind),
    kind .. " expected, got " .. tostring(err))
end

-- A coroutine that takes `turns` turns, then returns value.
local function after(turns, value)
  return spawn(function()
    for _ = 1, turns do suspend() end
    return value
  end)
end

-- A coroutine that takes `turns` turns, then fails.
local function fails(turns, err)
  return spawn(function()
    for _ = 1, turns do suspend() end
    error(err, 0)
  end)
end

local function completed(...)
  local future, promise = vigil.future()
  promise:complete(...)
  return future
end

local function failed(err)
  local future, promise = vigil.future()
  future:ignore()
  promise:fail(err)
  return future
end

local function pending()
  return (vigil.future())
end

-- How many are many; with a collection at every other instruction, fewer.
local MANY = os.getenv "VIGIL_GC_EVERY" and 500 or 50000

-- The six, as functions of one list and options.
local forms = {
  await_all = vigil.await_all,
  await_all_or_fail = vigil.await_all_or_fail,
  await_any_or_fail = vigil.await_any_or_fail,
  await_first_success = vigil.await_first_success,
  await_any_of = function(list, options)
    return vigil.await_any_of(1, list, options)
  end,
  await_any_of_or_fail = function(list, options)
    return vigil.await_any_of_or_fail(1, list, options)
  end,
}

-- A user-defined awaitable that counts what happens to it.
local function user_awaitable(on_await)
  local self = { awaited = 0, cancelled = 0 }
  return setmetatable(self, { __await = function(object, waker)
    object.awaited = object.awaited + 1
    object.waker = waker
    waker:on_cancel(function() object.cancelled = object.cancelled + 1 end)
    if on_await then on_await(waker) end
  end })
end

describe("await_all", function()
  spec("gives results keyed as the input (AW-11)", function()
    local results, errors = vigil.await_all {
      after(2, "a"), after(1, "b"), name = after(3, "c"),
    }
    assert.same({ "a", "b", name = "c" }, results)
    assert.same({}, errors)
  end)

  spec("gives the errors under their keys, absent from results (AW-11)",
    function()
      local results, errors = vigil.await_all {
        after(1, "a"), fails(0, "e2"), x = fails(2, "ex"),
      }
      assert.same({ "a" }, results)
      assert.same({ [2] = "e2", x = "ex" }, errors)
    end)

  spec("keeps any kind of key (AW-11)", function()
    local key = {}
    local results = vigil.await_all {
      [0] = after(1, "zero"), [-3] = after(1, "minus"), [1.5] = after(1, "h"),
      [key] = after(1, "table"), [true] = after(1, "boolean"),
      [1000] = after(1, "far"),
    }
    assert.same({
      [0] = "zero", [-3] = "minus", [1.5] = "h", [key] = "table",
      [true] = "boolean", [1000] = "far",
    }, results)
  end)

  spec("gives the first value of each entry (DESIGN 3)", function()
    local results = vigil.await_all {
      spawn(function() return 1, 2, 3 end), completed("a", "b"),
    }
    assert.same({ 1, "a" }, results)
  end)

  spec("waits for the slowest", function()
    local slow = spawn(function()
      sleep(0.005)
      return "slow"
    end)
    local results = vigil.await_all { after(0, "quick"), slow }
    assert.same({ "quick", "slow" }, results)
  end)

  spec("waits on although some have failed (R22)", function()
    local results, errors = vigil.await_all {
      fails(0, "e"), after(3, "late"), fails(1, "f"),
    }
    assert.same({ [2] = "late" }, results)
    assert.same({ "e", [3] = "f" }, errors)
  end)

  spec("keeps error values unchanged", function()
    local err = {}
    local _, errors = vigil.await_all { fails(0, err), fails(0, false) }
    assert.equal(err, errors[1])
    assert.is_false(errors[2])
  end)

  spec("of members that have settled does not suspend (AW-22)", function()
    local ran = false
    local co = started(function() return "c" end)
    spawn(function() ran = true end)
    local results, errors = vigil.await_all {
      completed "a", failed "b", co,
    }
    assert.same({ "a", [3] = "c" }, results)
    assert.same({ [2] = "b" }, errors)
    assert.is_false(ran)
  end)

  spec("mixes settled and pending members (AW-16, AW-22)", function()
    local results = vigil.await_all {
      after(1, 1), completed(2), after(2, 3), completed(4), after(1, 5),
    }
    assert.same({ 1, 2, 3, 4, 5 }, results)
  end)

  spec("gives the same member under both its keys (AW-23)", function()
    local co = after(1, "v")
    local results = vigil.await_all { co, other = co, [7] = co }
    assert.same({ "v", other = "v", [7] = "v" }, results)
  end)

  spec("gives the error of the same member under both keys (AW-23)",
    function()
      local co = fails(1, "e")
      local _, errors = vigil.await_all { co, co }
      assert.same({ "e", "e" }, errors)
    end)

  spec("skips holes and does not count them (AW-24)", function()
    local list = { after(1, "a"), nil, after(1, "c") }
    local results = vigil.await_all(list)
    assert.same({ "a", [3] = "c" }, results)
  end)

  spec("takes timers, user awaitables and coroutines together", function()
    local user = user_awaitable()
    spawn(function() user.waker:resolve "u" end)
    local results = vigil.await_all {
      vigil.timer(0.001), user, after(1, "c"),
    }
    assert.same({ 1, "u", "c" }, results)
    assert.equal(0, user.cancelled)
  end)

  spec("counts a timeout as a failure", function()
    local _, errors = vigil.await_all { vigil.timeout(0.001) }
    assert_kind("timeout", errors[1])
  end)

  spec("includes oneself: a deadlock for nobody but itself", function()
    local results, err
    local co = spawn(function()
      results, err = pcall(vigil.await_all, { vigil.current() },
        { token = 0.001 })
    end)
    await(co)
    assert.is_false(results)
    assert_kind("timeout", err)
  end)

  spec("by several coroutines gives all the same (AW-09)", function()
    local list = { after(2, "a"), fails(1, "e") }
    local function waiter()
      return spawn(function()
        local results, errors = vigil.await_all(list)
        return results[1] .. errors[2]
      end)
    end
    local a, b = waiter(), waiter()
    assert.equal("ae", await(a))
    assert.equal("ae", await(b))
  end)

  spec("does not change the list", function()
    local user = user_awaitable(function(w) w:resolve "u" end)
    local ch = vigil.channel(1)
    ch:send "c"
    local list = { user, ch:receiving() }
    vigil.await_all(list)
    assert.equal(user, list[1])
    assert.equal(ch, list[2])
    assert.equal(2, #list)
  end)

  it("works in the main chunk", function()
    local results = vigil.await_all {
      vigil.spawn(function() return "a" end), vigil.timer(0.001),
    }
    assert.same({ "a", 1 }, results)
  end)

  spec("works in a generator", function()
    local gen = vigil.coroutine.wrap(function()
      vigil.coroutine.yield((vigil.await_all { after(1, "v") }))
    end)
    assert.same({ "v" }, gen())
  end)

  spec("takes 50,000 members", function()
    local list = {}
    for i = 1, MANY do list[i] = spawn(function() return i end) end
    local results = vigil.await_all(list)
    for i = 1, MANY do assert(results[i] == i) end
  end)

  spec("takes one member 50,000 times", function()
    local list, co = {}, after(1, "v")
    for i = 1, MANY do list[i] = co end
    local results = vigil.await_all(list)
    for i = 1, MANY do assert(results[i] == "v") end
  end)
end)

describe("await_all_or_fail", function()
  spec("gives results keyed as the input (AW-13)", function()
    local results, more = vigil.await_all_or_fail {
      after(2, "a"), after(1, "b"), x = after(0, "c"),
    }
    assert.same({ "a", "b", x = "c" }, results)
    assert.is_nil(more)
  end)

  spec("raises the first error in time, unchanged, at once (AW-13)",
    function()
      local err, slow = {}, spawn(sleep, 9)
      local ok, got = pcall(vigil.await_all_or_fail, {
        slow, fails(1, err),
      })
      assert.is_false(ok)
      assert.equal(err, got)
      assert.equal("suspended", slow.state)
      slow:cancel()
    end)

  for position = 1, 3 do
    spec("sees a failure at position " .. position .. " (AW-16)", function()
      local list = { completed(1), completed(2), completed(3) }
      list[position] = failed "e"
      local ok, err = pcall(vigil.await_all_or_fail, list)
      assert.is_false(ok)
      assert.equal("e", err)
    end)

    spec("sees a later failure at position " .. position .. " (AW-16)",
      function()
        local list = { after(1), after(1), after(1) }
        list[position] = fails(2, "e")
        local ok, err = pcall(vigil.await_all_or_fail, list)
        assert.is_false(ok)
        assert.equal("e", err)
      end)
  end

  spec("leaves the others running (AW-14)", function()
    local other = after(5, "done")
    pcall(vigil.await_all_or_fail, { fails(1, "e"), other })
    assert.equal("queued", other.state)
    assert.equal("done", await(other))
  end)
end)

describe("await_any_or_fail", function()
  spec("gives value and key of the first to settle", function()
    local value, key = vigil.await_any_or_fail {
      slow = after(5, "s"), quick = after(1, "q"),
    }
    assert.equal("q", value)
    assert.equal("quick", key)
  end)

  spec("raises when the first to settle failed", function()
    local other = after(3, "late")
    local ok, err = pcall(vigil.await_any_or_fail, { other, fails(1, "e") })
    assert.is_false(ok)
    assert.equal("e", err)
    await(other)
  end)

  spec("does not care for a failure after the deciding one", function()
    local value, key = vigil.await_any_or_fail { completed "v", failed "e" }
    assert.equal("v", value)
    assert.equal(1, key)
  end)

  spec("takes the first in time when several settle in one tick (AW-16)",
    function()
      local value, key = vigil.await_any_or_fail { after(2, 1), after(1, 2),
        after(1, 3) }
      assert.equal(2, value)
      assert.equal(2, key)
    end)

  spec("takes settled members in input order", function()
    local value, key = vigil.await_any_or_fail {
      pending(), completed "b", completed "c",
    }
    assert.equal("b", value)
    assert.equal(2, key)
  end)

  spec("gives nil as a value", function()
    local value, key = vigil.await_any_or_fail { x = after(1, nil) }
    assert.is_nil(value)
    assert.equal("x", key)
  end)

  spec("works over channels as a race (no value is lost)", function()
    local a, b = vigil.channel(1), vigil.channel(1)
    spawn(function()
      a:send "a"
      b:send "b"
    end)
    local value, key = vigil.await_any_or_fail {
      a:receiving(), b:receiving(),
    }
    settle()
    assert.equal(1, #a + #b)
    assert.equal(value, key == 1 and "a" or "b")
    assert.equal(key == 1 and "b" or "a", a:try_recv() or b:try_recv())
  end)
end)

describe("await_first_success", function()
  spec("gives value, key and the errors before it (AW-18)", function()
    local value, key, errors = vigil.await_first_success {
      fails(0, "e1"), after(2, "v"), x = fails(1, "ex"), late = after(9),
    }
    assert.equal("v", value)
    assert.equal(2, key)
    assert.same({ "e1", x = "ex" }, errors)
  end)

  spec("gives nil and all errors when all fail (AW-18)", function()
    local value, key, errors = vigil.await_first_success {
      fails(1, "e1"), b = fails(0, "eb"), failed "e2",
    }
    assert.is_nil(value)
    assert.is_nil(key)
    assert.same({ "e1", b = "eb", [2] = "e2" }, errors)
  end)

  spec("tells a success with nil from no success: the key", function()
    local value, key, errors = vigil.await_first_success { after(1, nil) }
    assert.is_nil(value)
    assert.equal(1, key)
    assert.same({}, errors)
  end)

  spec("does not take a timeout for a success (AW-18)", function()
    local value, key, errors = vigil.await_first_success {
      vigil.timeout(0.001), spawn(function()
        sleep(0.004)
        return "v"
      end),
    }
    assert.equal("v", value)
    assert.equal(2, key)
    assert_kind("timeout", errors[1])
  end)

  spec("does not take an expired timeout for a success", function()
    local token = vigil.timeout(0)
    sleep(0.002)
    local value, key = vigil.await_first_success { token, after(1, "v") }
    assert.equal("v", value)
    assert.equal(2, key)
  end)

  spec("does not take a closed timer for a success", function()
    local timer = vigil.timer(9)
    timer:close()
    local value, key, errors = vigil.await_first_success {
      timer, after(1, "v"),
    }
    assert.equal("v", value)
    assert.equal(2, key)
    assert_kind("closed", errors[1])
  end)

  spec("does not take a timer closed meanwhile for a success", function()
    local timer = vigil.timer(9)
    spawn(function() timer:close() end)
    local value, _, errors = vigil.await_first_success {
      timer, after(3, "v"),
    }
    assert.equal("v", value)
    assert_kind("closed", errors[1])
  end)

  spec("does not take a closed channel for a success", function()
    local ch = vigil.channel()
    ch:close()
    local value, key, errors = vigil.await_first_success {
      ch:receiving(), after(3, "v"),
    }
    assert.equal("v", value)
    assert.equal(2, key)
    assert_kind("closed", errors[1])
  end)
end)

describe("await_any_of", function()
  spec("ends with n successes (AW-19)", function()
    local slow = after(9, "slow")
    local results, errors = vigil.await_any_of(2, {
      slow, after(1, "a"), x = after(2, "b"),
    })
    assert.same({ [2] = "a", x = "b" }, results)
    assert.same({}, errors)
    await(slow)
  end)

  spec("collects the errors meanwhile and does not count them (AW-19)",
    function()
      local results, errors = vigil.await_any_of(2, {
        fails(0, "e"), after(1, "a"), fails(1, "f"), after(4, "b"),
      })
      assert.same({ [2] = "a", [4] = "b" }, results)
      assert.same({ "e", [3] = "f" }, errors)
    end)

  spec("never gives fewer while some are pending (AW-19)", function()
    local start = vigil.now()
    local results = vigil.await_any_of(2, {
      completed "a", fails(1, "e"), spawn(function()
        sleep(0.004)
        return "b"
      end),
    })
    assert.same({ "a", [3] = "b" }, results)
    assert.is_true(vigil.now() - start >= 0.004)
  end)

  spec("ends when all have settled with less (AW-19)", function()
    local results, errors = vigil.await_any_of(2, {
      after(1, "a"), fails(2, "e"),
    })
    assert.same({ "a" }, results)
    assert.same({ [2] = "e" }, errors)
  end)

  spec("of more than there are ends with what there is (AW-19)", function()
    local results = vigil.await_any_of(10, { after(1, "a"), after(2, "b") })
    assert.same({ "a", "b" }, results)
  end)

  spec("of n = math.maxinteger ends with what there is", function()
    local results = vigil.await_any_of(math.maxinteger, { after(1, "a") })
    assert.same({ "a" }, results)
  end)

  spec("of 2^32 ends with what there is", function()
    local results = vigil.await_any_of(1 << 32, {
      after(1, "a"), after(2, "b"),
    })
    assert.same({ "a", "b" }, results)
  end)

  spec("of 0 is empty at once, nothing subscribed", function()
    local user, ran = user_awaitable(), false
    spawn(function() ran = true end)
    local results, errors = vigil.await_any_of(0, { user })
    assert.same({}, results)
    assert.same({}, errors)
    assert.equal(0, user.awaited)
    assert.is_false(ran)
  end)

  spec("refuses a count below 0 or of a wrong kind", function()
    for _, n in ipairs { -1, 1.5, "2", false } do
      local ok, err = pcall(vigil.await_any_of, n, {})
      assert.is_false(ok)
      assert.matches("bad argument #1 to 'await_any_of'", err)
    end
  end)

  spec("counts the same member twice (AW-23)", function()
    local co = after(1, "v")
    local results = vigil.await_any_of(2, { co, co, pending() })
    assert.same({ "v", "v" }, results)
  end)
end)

describe("await_any_of_or_fail", function()
  spec("ends with n successes (AW-20)", function()
    local results, more = vigil.await_any_of_or_fail(2, {
      after(9, "slow"), after(1, "a"), x = after(2, "b"),
    })
    assert.same({ [2] = "a", x = "b" }, results)
    assert.is_nil(more)
  end)

  spec("raises the first error (AW-20)", function()
    local ok, err = pcall(vigil.await_any_of_or_fail, 2, {
      after(1, "a"), fails(2, "e"), after(3, "b"),
    })
    assert.is_false(ok)
    assert.equal("e", err)
    settle()
  end)

  spec("does not see an error after the deciding success", function()
    local results = vigil.await_any_of_or_fail(1, {
      completed "a", failed "e",
    })
    assert.same({ "a" }, results)
  end)

  spec("of 0 is empty at once (AW-20)", function()
    assert.same({}, vigil.await_any_of_or_fail(0, { failed "e" }))
  end)

  spec("above the size gives all (AW-20)", function()
    local results = vigil.await_any_of_or_fail(9, {
      after(1, "a"), after(2, "b"),
    })
    assert.same({ "a", "b" }, results)
  end)
end)

describe("empty collections", function()
  spec("give empty tables (AW-17)", function()
    assert.same({ {}, {} }, { vigil.await_all {} })
    assert.same({ {} }, { vigil.await_all_or_fail {} })
    assert.same({ {}, {} }, { vigil.await_any_of(3, {}) })
    assert.same({ {} }, { vigil.await_any_of_or_fail(3, {}) })
  end)

  spec("give nil where there would be a value (AW-17)", function()
    assert.is_nil((vigil.await_any_or_fail {}))
    local value, key, errors = vigil.await_first_success {}
    assert.is_nil(value)
    assert.is_nil(key)
    assert.same({}, errors)
  end)

  spec("do not suspend", function()
    local ran = false
    spawn(function() ran = true end)
    for _, form in pairs(forms) do form {} end
    assert.is_false(ran)
  end)

  spec("may be iterators that end at once", function()
    for _, form in pairs(forms) do form(function() end) end
  end)
end)

describe("iterators as collections", function()
  local function iterator(list)
    local i = 0
    return function()
      i = i + 1
      return list[i]
    end
  end

  spec("are numbered in their order (AW-25)", function()
    local results = vigil.await_all(iterator { after(2, "a"), after(1, "b") })
    assert.same({ "a", "b" }, results)
  end)

  spec("are called without arguments until nil (DESIGN 5.27)", function()
    local counts, list = {}, { after(1, "a"), after(1, "b") }
    local i = 0
    vigil.await_all(function(...)
      counts[#counts + 1] = select("#", ...)
      i = i + 1
      return list[i]
    end)
    assert.same({ 0, 0, 0 }, counts)
  end)

  spec("may be generators that wait between members (AW-25)", function()
    local gen = vigil.coroutine.wrap(function()
      for i = 1, 3 do
        vigil.coroutine.yield(after(1, i))
        sleep(0.001)
      end
    end)
    assert.same({ 1, 2, 3 }, (vigil.await_all(gen)))
  end)

  spec("work with every form", function()
    for name, form in pairs(forms) do
      local a = form(iterator { completed "v" })
      assert.is_true(a == "v" or a[1] == "v", name)
    end
  end)

  spec("that raise end the wait at once with that error (AW-26)", function()
    local err, user = {}, user_awaitable()
    local n = 0
    local ok, got = pcall(vigil.await_all, function()
      n = n + 1
      if n == 3 then error(err) end
      return user
    end)
    assert.is_false(ok)
    assert.equal(err, got)
    assert.equal(0, user.awaited)
  end)
end)

describe("an entry that is not awaitable", function()
  for name, form in pairs(forms) do
    spec("is refused by its key before anything is subscribed: " .. name ..
      " (AW-24)", function()
      local user = user_awaitable()
      local ok, err = pcall(form, { user, pending(), 42 })
      assert.is_false(ok)
      assert.matches("entry 3: awaitable expected, got number", err)
      assert.matches("'" .. name .. "'", err)
      assert.equal(0, user.awaited)
    end)
  end

  spec("is named by its key, and the argument by its number", function()
    local ok, err = pcall(vigil.await_any_of, 1, { x = print })
    assert.is_false(ok)
    assert.matches("bad argument #2 to 'await_any_of'", err)
    assert.matches("entry x: awaitable expected, got function", err)
  end)

  spec("is reported at the caller's line", function()
    local line = debug.getinfo(1, "l").currentline + 1
    local _, err = pcall(function() return (vigil.await_all { 42 }) end)
    assert.matches("await_many_spec.lua:" .. line .. ":", err)
  end)

  spec("is refused: false in a list", function()
    local ok, err = pcall(vigil.await_all, { pending(), false })
    assert.is_false(ok)
    assert.matches("entry 2", err)
  end)

  spec("leaves channel cases untouched", function()
    local ch = vigil.channel(1)
    ch:send "kept"
    assert.is_false(pcall(vigil.await_all, { ch:receiving(), 42 }))
    settle()
    assert.equal(1, #ch)
  end)

  spec("is refused: a collection that is none", function()
    local ok, err = pcall(vigil.await_all, 42)
    assert.is_false(ok)
    assert.matches("table or iterator expected, got number", err)
  end)

  spec("is refused: options that are none, or unknown", function()
    local ok, err = pcall(vigil.await_all, {}, 5)
    assert.is_false(ok)
    assert.matches("options: table expected", err)
    ok, err = pcall(vigil.await_all, {}, { tokn = 1 })
    assert.is_false(ok)
    assert.matches("unknown option 'tokn'", err)
  end)

  spec("is refused: a token that is none", function()
    assert.is_false(pcall(vigil.await_all, { pending() }, { token = "x" }))
  end)
end)

describe("losers", function()
  spec("run on", function()
    local loser = after(5, "done")
    vigil.await_any_or_fail { after(1, "v"), loser }
    assert.equal("done", await(loser))
  end)

  spec("hear nothing more of the wait: user awaitables are told", function()
    local loser = user_awaitable()
    vigil.await_any_or_fail { after(1, "v"), loser }
    assert.equal(1, loser.cancelled)
    assert.is_false(loser.waker:resolve "late")
  end)

  spec("that settled in time are not told", function()
    local a, b = user_awaitable(), user_awaitable()
    spawn(function()
      a.waker:resolve "a"
      b.waker:resolve "b"
    end)
    vigil.await_all { a, b }
    assert.equal(0, a.cancelled + b.cancelled)
  end)

  it("fail later into their scope: the run fails with it (DESIGN 5.2)",
    function()
      local code, out = helper.run_script [[
        local vigil = require "vigil"
        vigil.configure { warnings = false }
        local reached
        local ok, err = pcall(vigil.run, function()
          local loser = vigil.spawn(function()
            vigil.sleep(0.002)
            error("loser", 0)
          end)
          local quick = vigil.spawn(function() return "v" end)
          reached = vigil.await_any_or_fail { loser, quick }
          vigil.sleep(0.01)
        end)
        print(reached, ok, err)
      ]]
      assert.equal(0, code)
      assert.equal("v\tfalse\tloser\n", out)
    end)

  it("of await_all_or_fail fail later into their scope (DESIGN 5.2)",
    function()
      local code, out = helper.run_script [[
        local vigil = require "vigil"
        vigil.configure { warnings = false }
        local ok, err = pcall(vigil.run, function()
          local first = vigil.spawn(function() error("first", 0) end)
          local second = vigil.spawn(function()
            vigil.sleep(0.002)
            error("second", 0)
          end)
          print(pcall(vigil.await_all_or_fail, { first, second }))
          vigil.sleep(0.01)
        end)
        print(ok, err)
      ]]
      assert.equal(0, code)
      assert.equal("false\tfirst\nfalse\tsecond\n", out)
    end)

  spec("that failed before the deciding one are handled", function()
    local value = vigil.await_first_success { fails(1, "e"), after(3, "v") }
    assert.equal("v", value) -- and the run does not fail
    settle()
  end)
end)

describe("opts.token", function()
  for name, form in pairs(forms) do
    spec("ends the wait: " .. name, function()
      local user = user_awaitable()
      local ok, err = pcall(form, { user }, { token = 0.001 })
      assert.is_false(ok)
      assert_kind("timeout", err)
      assert.equal(1, user.cancelled)
    end)
  end

  spec("may be any awaitable; err.token and err.cause (AW-03)", function()
    local token = fails(1, "why")
    local ok, err = pcall(vigil.await_all, { pending() }, { token = token })
    assert.is_false(ok)
    assert_kind("cancelled", err)
    assert.equal(token, err.token)
    assert.equal("why", err.cause)
  end)

  spec("that has fired before ends it at once (AW-02)", function()
    local ok, err = pcall(vigil.await_all, { pending() },
      { token = completed() })
    assert.is_false(ok)
    assert_kind("cancelled", err)
  end)

  spec("that has fired loses when enough members have settled", function()
    local results = vigil.await_all({ completed "v" },
      { token = completed() })
    assert.same({ "v" }, results)
  end)

  spec("that is a member too ends the wait when it settles (AW-07)",
    function()
      local co = after(2, "v")
      local ok, err = pcall(vigil.await_all, { co, pending() },
        { token = co })
      assert.is_false(ok)
      assert_kind("cancelled", err)
      assert.equal(co, err.token)
    end)

  spec("that does not fire leaves no timer behind", function()
    vigil.await_all({ after(1, "v") }, { token = 60 })
    assert.equal(0, core.counts().timers)
  end)
end)

describe("opts.ordered = false", function()
  spec("gives arrays in order of completion (AW-12)", function()
    local results, errors = vigil.await_all({
      after(3, "c"), x = after(1, "a"), fails(2, "f"), y = fails(1, "e"),
      after(2, "b"),
    }, { ordered = false })
    assert.same({ "a", "b", "c" }, results)
    assert.same({ "e", "f" }, errors)
  end)

  spec("works for await_any_of (AW-12)", function()
    local results = vigil.await_any_of(2, {
      after(3, "c"), after(2, "b"), after(1, "a"),
    }, { ordered = false })
    assert.same({ "a", "b" }, results)
  end)
end)

describe("opts.fill", function()
  spec("stands for what failed (AW-11)", function()
    local results, errors = vigil.await_all({
      after(1, "a"), fails(1, "e"), x = fails(1, "f"),
    }, { fill = false })
    assert.same({ "a", false, x = false }, results)
    assert.same({ [2] = "e", x = "f" }, errors)
  end)

  spec("stands for what is still pending (AW-11)", function()
    local results = vigil.await_any_of(1, {
      after(9, "late"), after(1, "a"),
    }, { fill = "none" })
    assert.same({ "none", "a" }, results)
  end)

  spec("does not replace false", function()
    local results = vigil.await_all({ after(1, false) }, { fill = "x" })
    assert.is_false(results[1])
  end)
end)

describe("opts.cancel", function()
  spec("cancels the rest and waits for its end", function()
    local cleaned = false
    local loser = started(function()
      local guard <close> = setmetatable({}, { __close = function()
        vigil.protect(function()
          sleep(0.003)
          cleaned = true
        end)
      end })
      sleep(9)
      return guard
    end)
    local value = vigil.await_any_or_fail({ loser, after(1, "v") },
      { cancel = true })
    assert.equal("v", value)
    assert.is_true(cleaned)
    assert.equal("cancelled", loser.state)
  end)

  spec("cancels the rest after an error", function()
    local loser = started(sleep, 9)
    local ok, err = pcall(vigil.await_all_or_fail,
      { loser, fails(1, "e") }, { cancel = true })
    assert.is_false(ok)
    assert.equal("e", err)
    assert.equal("cancelled", loser.state)
  end)

  spec("cancels the rest after a timeout", function()
    local loser = started(sleep, 9)
    local ok, err = pcall(vigil.await_all, { loser },
      { cancel = true, token = 0.001 })
    assert.is_false(ok)
    assert_kind("timeout", err)
    assert.equal("cancelled", loser.state)
  end)

  spec("cancels the rest when the waiter is cancelled", function()
    local loser = started(sleep, 9)
    local waiter = started(function()
      vigil.await_all({ loser }, { cancel = true })
    end)
    waiter:cancel()
    assert_kind("cancelled", (select(2, pawait(waiter))))
    assert.equal("cancelled", loser.state)
  end)

  spec("cancels pending futures", function()
    local future = vigil.future()
    vigil.await_any_or_fail({ completed "v", future }, { cancel = true })
    assert.is_true(future:is_cancelled())
  end)

  spec("takes errors of the rest's clean-up for handled", function()
    local loser = started(function()
      pcall(sleep, 9)
      error "while cleaning up"
    end)
    assert.equal("v", (vigil.await_any_or_fail({ loser, completed "v" },
      { cancel = true })))
  end)
end)

describe("channel cases as members", function()
  spec("are received from and sent to", function()
    local a, b = vigil.channel(1), vigil.channel()
    a:send "v"
    local other = spawn(function() return b:recv() end)
    local results = vigil.await_all { a:receiving(), x = b:sending "w" }
    assert.same({ "v", x = true }, results)
    assert.equal("w", await(other))
  end)

  spec("that fail give closed", function()
    local ch = vigil.channel()
    ch:close()
    local _, errors = vigil.await_all { ch:receiving(), ch:sending(1) }
    assert_kind("closed", errors[1])
    assert_kind("closed", errors[2])
  end)

  spec("that lose take nothing later", function()
    local ch = vigil.channel()
    vigil.await_any_or_fail { ch:receiving(), after(3, "v") }
    assert.is_false(ch:try_send "not taken")
    settle()
    assert.is_false(ch:try_send "not taken")
  end)

  spec("that lose send nothing later", function()
    local ch = vigil.channel()
    vigil.await_any_or_fail { ch:sending "no", after(3, "v") }
    assert.is_nil((ch:try_recv()))
    settle()
    assert.is_nil((ch:try_recv()))
  end)

  spec("take nothing when others decide at once", function()
    local ch = vigil.channel(1)
    ch:send "kept"
    vigil.await_any_or_fail { completed "v", ch:receiving() }
    settle()
    assert.equal("kept", ch:try_recv())
  end)

  spec("give back a value of the tick in which another decided", function()
    local ch = vigil.channel()
    local future, promise = vigil.future()
    local waiter = spawn(function()
      return vigil.await_any_or_fail { future, ch:receiving() }
    end)
    settle()
    assert.is_true(ch:try_send "v")
    promise:complete "f"
    assert.equal("f", (await(waiter)))
    settle()
    assert.equal("v", ch:try_recv())
  end)

  spec("give back a value of the tick in which the waiter was cancelled",
    function()
      local ch = vigil.channel()
      local waiter = spawn(function()
        vigil.await_all { pending(), ch:receiving() }
      end)
      settle()
      assert.is_true(ch:try_send "v")
      waiter:cancel()
      pawait(waiter)
      settle()
      assert.equal("v", ch:try_recv())
    end)

  spec("leave nothing waiting after a timeout", function()
    local ch = vigil.channel()
    pcall(vigil.await_all, { ch:receiving(), ch:sending(1) },
      { token = 0.002 })
    settle()
    assert.matches("0 receiving, 0 sending", tostring(ch))
  end)
end)

describe("cancellation while waiting", function()
  for name, form in pairs(forms) do
    spec("raises and leaves the members running: " .. name, function()
      local member, user = started(sleep, 9), user_awaitable()
      local waiter = started(function() form { member, user } end)
      waiter:cancel "stop"
      local ok, err = pawait(waiter)
      assert.is_false(ok)
      assert.equal("stop", err.message)
      assert.equal("suspended", member.state)
      assert.equal(1, user.cancelled)
      member:cancel()
    end)
  end

  spec("after the outcome wins over it (CN-03)", function()
    local future, promise = vigil.future()
    local waiter = started(function()
      vigil.await_all { future }
    end)
    promise:complete()
    waiter:cancel()
    assert.is_false((pawait(waiter)))
    assert.equal("cancelled", waiter.state)
  end)

  spec("before the call raises at once (DESIGN 5.5)", function()
    local user = user_awaitable()
    local co = spawn(function()
      vigil.current():cancel()
      vigil.await_all { user }
    end)
    assert.is_false((pawait(co)))
    assert.equal(0, user.awaited)
  end)
end)

describe("after the wait", function()
  spec("no timer of a member is armed (WK-06)", function()
    vigil.await_any_or_fail { vigil.timer(60), vigil.timer(0.001) }
    assert.equal(0, core.counts().timers)
    assert.equal(0, core.counts().active)
  end)

  spec("no member keeps anything of it (GC-04)", function()
    local loser = vigil.future()
    local weak = setmetatable({}, { __mode = "v" })
    do
      local list = { loser, completed {} }
      weak.list = list
      weak.value = vigil.await_any_or_fail(list)
    end
    collectgarbage()
    collectgarbage()
    assert.is_nil(weak.list)
    assert.is_nil(weak.value)
  end)

  spec("a member that settles later wakes nobody", function()
    local future, promise = vigil.future()
    vigil.await_any_or_fail { future, completed "v" }
    local woken = false
    local co = spawn(function()
      suspend()
      woken = true
    end)
    promise:complete()
    assert.is_false(woken)
    await(co)
  end)

  spec("an __await that raises tells those before it", function()
    local first = user_awaitable()
    local bad = user_awaitable(function() error("broken", 0) end)
    local last = user_awaitable()
    local ok, err = pcall(vigil.await_all, { first, bad, last })
    assert.is_false(ok)
    assert.equal("broken", err)
    assert.equal(1, first.cancelled)
    assert.equal(0, last.awaited)
  end)
end)

describe("a wait for many that nothing can end", function()
  it("is a deadlock and says for what", function()
    local code, out = helper.run_script [[
      local vigil = require "vigil"
      vigil.configure { warnings = false }
      local ok, err = pcall(vigil.run, function()
        local fine, e = pcall(vigil.await_all, { (vigil.future()) })
        print(fine, e.kind, e.message:find "future" ~= nil)
      end)
      print(ok, err.kind)
    ]]
    assert.equal(0, code)
    assert.equal("false\tdeadlock\ttrue\nfalse\tdeadlock\n", out)
  end)
end)
