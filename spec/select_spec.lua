-- One wait over anything: vigil.select.  DESIGN 3, 5.8; SEMANTICS CH, WK;
-- FIELD-REPORTS R24, R63.

local core = require "vigil.core"
local helper = require "spec.helper"
local vigil = require "vigil"

local spawn, suspend, sleep = vigil.spawn, vigil.suspend, vigil.sleep
local await, pawait, select_ = vigil.await, vigil.pawait, vigil.select

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

-- What tostring says about who waits in a channel.
local function assert_nobody_waits(ch)
  assert.matches("0 receiving, 0 sending, 0 promised", tostring(ch))
end

-- An awaitable that counts what happens to it.
local function user_awaitable(on_await)
  local self = { cancelled = 0, awaited = 0 }
  return setmetatable(self, {
    __await = function(object, waker)
      object.awaited = object.awaited + 1
      object.waker = waker
      waker:on_cancel(function() object.cancelled = object.cancelled + 1 end)
      if on_await then on_await(waker) end
    end,
  })
end

describe("select over what is ready", function()
  spec("receives: index and value", function()
    local a, b = vigil.channel(1), vigil.channel(1)
    b:send "v"
    local index, value = select_ { a:receiving(), b:receiving() }
    assert.equal(2, index)
    assert.equal("v", value)
  end)

  spec("receives false as a value", function()
    local ch = vigil.channel(1)
    ch:send(false)
    local index, value, err = select_ { ch:receiving() }
    assert.equal(1, index)
    assert.is_false(value)
    assert.is_nil(err)
  end)

  spec("sends: index and true", function()
    local ch = vigil.channel(1)
    local index, ok = select_ { ch:sending "v" }
    assert.equal(1, index)
    assert.is_true(ok)
    assert.equal("v", ch:try_recv())
  end)

  spec("sends to a receiver that waits", function()
    local ch = vigil.channel()
    local co = started(function() return ch:recv() end)
    assert.equal(1, (select_ { ch:sending "v" }))
    assert.equal("v", await(co))
  end)

  spec("receives from a sender that waits", function()
    local ch = vigil.channel()
    local co = started(function() return ch:send "v" end)
    local index, value = select_ { ch:receiving() }
    assert.equal(1, index)
    assert.equal("v", value)
    assert.is_true(await(co))
  end)

  spec("receives from a sender that was promised a slot (CH-07)", function()
    local ch = vigil.channel(1)
    ch:send "first"
    local co = started(function() return ch:send "second" end)
    assert.equal("first", ch:try_recv())
    local index, value = select_ { ch:receiving(), default = true }
    assert.equal(1, index)
    assert.equal("second", value)
    assert.is_true(await(co))
  end)

  spec("does not send into a slot that was promised (CH-07)", function()
    local ch = vigil.channel(1)
    ch:send "first"
    local co = started(function() ch:send "second" end)
    assert.equal("first", ch:try_recv())
    assert.is_nil((select_ { ch:sending "late", default = true }))
    await(co)
    assert.equal("second", ch:try_recv())
  end)

  spec("does not suspend (WK-10)", function()
    local ch, ran = vigil.channel(1), false
    ch:send "v"
    spawn(function() ran = true end)
    select_ { ch:receiving() }
    assert.is_false(ran)
  end)

  spec("gives all values of a coroutine", function()
    local co = started(function() return 1, nil, 3 end)
    local n = select("#", select_ { co })
    assert.equal(4, n)
    assert.same({ 1, 1, nil, 3 }, { select_ { co } })
  end)

  spec("gives a future's value", function()
    local future, promise = vigil.future()
    promise:complete("a", "b")
    assert.same({ 1, "a", "b" }, { select_ { future } })
  end)

  spec("gives index, nil, error for a failed coroutine (DESIGN 5.8)",
    function()
      local err = {}
      local co = spawn(error, err)
      assert.same({ false, err }, { pawait(co) })
      local index, value, got = select_ { co }
      assert.equal(1, index)
      assert.is_nil(value)
      assert.equal(err, got)
    end)

  spec("takes effect for the chosen case only", function()
    local full, empty, ready = vigil.channel(1), vigil.channel(1),
      vigil.channel(1)
    full:send "kept"
    ready:send "v"
    for _ = 1, 20 do
      local index = select_ {
        full:sending "no", empty:receiving(), ready:receiving()
      }
      assert.equal(3, index)
      assert.equal(0, #ready)
      ready:send "v"
    end
    assert.equal(0, #empty)
    assert.equal("kept", full:try_recv())
    assert.is_nil((full:try_recv()))
  end)

  spec("takes one value where several channels have one", function()
    local channels, cases = {}, {}
    for i = 1, 5 do
      channels[i] = vigil.channel(1)
      channels[i]:send(i)
      cases[i] = channels[i]:receiving()
    end
    local index, value = select_(cases)
    assert.equal(index, value)
    local left = 0
    for i = 1, 5 do left = left + #channels[i] end
    assert.equal(4, left)
  end)
end)

describe("select that must wait", function()
  spec("is woken by a value", function()
    local a, b = vigil.channel(), vigil.channel()
    spawn(function()
      sleep(0.001)
      b:send "v"
    end)
    local index, value = select_ { a:receiving(), b:receiving() }
    assert.equal(2, index)
    assert.equal("v", value)
    assert_nobody_waits(a)
    assert_nobody_waits(b)
  end)

  spec("is woken by a receiver, rendezvous", function()
    local a, b = vigil.channel(), vigil.channel()
    local co = started(function()
      return select_ { a:sending "to a", b:sending "to b" }
    end)
    assert.equal("to b", b:recv())
    assert.same({ 2, true }, { await(co) })
    assert.is_nil((a:try_recv()))
    assert_nobody_waits(a)
  end)

  spec("is woken by a free slot", function()
    local a, b = vigil.channel(1), vigil.channel(1)
    a:send "a0"
    b:send "b0"
    local co = started(function()
      return select_ { a:sending "a1", b:sending "b1" }
    end)
    assert.equal("a0", a:recv())
    assert.same({ 1, true }, { await(co) })
    assert.equal("a1", a:recv())
    assert.equal("b0", b:recv())
    assert.equal(0, #a + #b)
    assert_nobody_waits(b)
  end)

  spec("is chosen where it came first (FIFO)", function()
    local ch, log = vigil.channel(), {}
    spawn(function()
      local _, v = select_ { ch:receiving(), vigil.channel():receiving() }
      log[#log + 1] = "select:" .. v
    end)
    spawn(function()
      local v = ch:recv()
      log[#log + 1] = "recv:" .. v
    end)
    suspend()
    ch:send(1)
    ch:send(2)
    settle()
    assert.same({ "select:1", "recv:2" }, log)
  end)

  spec("over one channel both ways meets another like it", function()
    local ch = vigil.channel()
    local function both(v)
      return spawn(function()
        return select_ { ch:receiving(), ch:sending(v) }
      end)
    end
    local a, b = both "from a", both "from b"
    local ia, va = await(a)
    local ib, vb = await(b)
    assert.equal(3, ia + ib) -- one sent, one received
    if ia == 1 then
      assert.equal("from b", va)
      assert.is_true(vb)
    else
      assert.equal("from a", vb)
      assert.is_true(va)
    end
    assert_nobody_waits(ch)
  end)

  spec("over one channel both ways does not serve itself", function()
    local ch = vigil.channel()
    local co = started(function()
      return select_ { ch:receiving(), ch:sending "mine" }
    end)
    settle()
    assert.equal("suspended", co.state)
    assert.is_true(ch:try_send "theirs")
    assert.same({ 1, "theirs" }, { await(co) })
  end)

  spec("over one channel both ways serves a receiver", function()
    local ch = vigil.channel()
    local co = started(function()
      return select_ { ch:receiving(), ch:sending "mine" }
    end)
    assert.equal("mine", ch:try_recv())
    assert.same({ 2, true }, { await(co) })
    assert_nobody_waits(ch)
  end)

  spec("over the same case twice takes one value (WK-08)", function()
    local ch = vigil.channel()
    local co = started(function()
      return select_ { ch:receiving(), ch:receiving() }
    end)
    assert.is_true(ch:try_send "v")
    assert.is_false(ch:try_send "w")
    local index, value = await(co)
    assert.is_true(index == 1 or index == 2)
    assert.equal("v", value)
    assert_nobody_waits(ch)
  end)

  spec("with the same sending case twice sends once", function()
    local ch = vigil.channel()
    local case = ch:sending "v"
    local co = started(function() return select_ { case, case } end)
    assert.equal("v", ch:try_recv())
    assert.is_nil((ch:try_recv()))
    assert.is_true(select(2, await(co)))
  end)

  spec("over the same coroutine twice is woken once (WK-08)", function()
    local co = spawn(function()
      sleep(0.001)
      return "v"
    end)
    local index, value = select_ { co, co }
    assert.is_true(index == 1 or index == 2)
    assert.equal("v", value)
  end)

  spec("is woken by a coroutine that ends", function()
    local slow, quick = spawn(sleep, 0.05), spawn(function()
      sleep(0.001)
      return "q", 2
    end)
    assert.same({ 2, "q", 2 }, { select_ { slow, quick } })
    assert.equal("suspended", slow.state) -- the loser runs on
    slow:cancel()
  end)

  spec("handles the error of a coroutine that fails meanwhile (WK-15)",
    function()
      local err = {}
      local co = spawn(function()
        suspend()
        error(err)
      end)
      local index, value, got = select_ { co, vigil.timeout(1) }
      assert.equal(1, index)
      assert.is_nil(value)
      assert.equal(err, got)
    end)

  spec("is woken by a timeout: index, nil, error (DESIGN 5.8)", function()
    local ch = vigil.channel()
    local index, value, err = select_ {
      ch:receiving(), vigil.timeout(0.002)
    }
    assert.equal(2, index)
    assert.is_nil(value)
    assert_kind("timeout", err)
    assert_nobody_waits(ch)
  end)

  spec("is woken by a timer: index and ticks", function()
    assert.same({ 1, 1 }, { select_ { vigil.timer(0.001) } })
  end)

  spec("keeps no timer armed once something else came", function()
    local ch = vigil.channel(1)
    spawn(function() ch:send(1) end)
    select_ { ch:receiving(), vigil.timeout(60), vigil.timer(60) }
    assert.equal(0, core.counts().timers)
  end)

  spec("works with many cases", function()
    local channels, cases = {}, {}
    for i = 1, 300 do
      channels[i] = vigil.channel()
      cases[i] = channels[i]:receiving()
    end
    spawn(function() channels[277]:send "v" end)
    assert.same({ 277, "v" }, { select_(cases) })
    for i = 1, 300 do assert.is_false(channels[i]:try_send(1)) end
  end)

  spec("works with many sending cases, the right value is sent", function()
    local channels, cases = {}, {}
    for i = 1, 120 do
      channels[i] = vigil.channel()
      cases[i] = channels[i]:sending(i)
    end
    local co = started(function() return (select_(cases)) end)
    assert.equal(77, channels[77]:recv())
    assert.equal(77, await(co))
  end)

  it("in the main chunk drives the loop", function()
    local ch = vigil.channel()
    vigil.spawn(function()
      vigil.sleep(0.001)
      ch:send "v"
    end)
    assert.same({ 1, "v" }, { select_ { ch:receiving() } })
  end)

  spec("in a generator suspends the coroutine around it", function()
    local ch = vigil.channel()
    spawn(function() ch:send "v" end)
    local gen = vigil.coroutine.wrap(function()
      vigil.coroutine.yield(select_ { ch:receiving() })
    end)
    assert.same({ 1, "v" }, { gen() })
  end)
end)

describe("default", function()
  spec("is taken when nothing is ready: nil", function()
    local ch = vigil.channel()
    assert.is_nil((select_ { ch:receiving(), ch:sending(1),
      default = true }))
    assert_nobody_waits(ch)
  end)

  spec("is not taken when something is ready", function()
    local ch = vigil.channel(1)
    assert.equal(1, (select_ { ch:sending "v", default = true }))
  end)

  spec("false means none", function()
    local ch = vigil.channel()
    spawn(function() ch:send "v" end)
    assert.equal(1, (select_ { ch:receiving(), default = false }))
  end)

  spec("is enough alone", function()
    assert.is_nil((select_ { default = true }))
  end)

  spec("in a loop lets the others run after a while (DESIGN 5.6)", function()
    local ch, ran = vigil.channel(), false
    spawn(function() ran = true end)
    for _ = 1, 200 do select_ { ch:receiving(), default = true } end
    assert.is_true(ran)
  end)

  spec("tells user awaitables that they are not waited for", function()
    local user = user_awaitable()
    assert.is_nil((select_ { user, default = true }))
    assert.equal(1, user.cancelled)
  end)
end)

describe("fairness among ready cases", function()
  local function shares(cases, rounds)
    local count = {}
    for i = 1, #cases do count[i] = 0 end
    for _ = 1, rounds do
      local index = select_(cases)
      count[index] = count[index] + 1
    end
    return count
  end

  spec("holds for all ready (R34)", function()
    local cases = {}
    for i = 1, 4 do
      cases[i] = started(function() return i end)
    end
    for _, n in ipairs(shares(cases, 4000)) do
      assert.is_true(n > 700 and n < 1300, "share: " .. n)
    end
  end)

  spec("holds for neighbours among cases that are not ready", function()
    local cases = {}
    for i = 1, 8 do cases[i] = vigil.channel():receiving() end
    cases[1] = started(function() end)
    cases[2] = started(function() end)
    local count = shares(cases, 2000)
    assert.equal(2000, count[1] + count[2])
    assert.is_true(count[1] > 700 and count[1] < 1300,
      "share: " .. count[1])
  end)

  spec("starves neither of two busy channels", function()
    local a, b = vigil.channel(1), vigil.channel(1)
    local producers = {}
    for i, ch in ipairs { a, b } do
      producers[i] = spawn(function()
        while true do ch:send(i) end
      end)
    end
    local count = { 0, 0 }
    for _ = 1, 1000 do
      local _, who = select_ { a:receiving(), b:receiving() }
      count[who] = count[who] + 1
    end
    for _, co in ipairs(producers) do co:cancel() end
    assert.is_true(count[1] > 200 and count[2] > 200)
  end)
end)

describe("select and close", function()
  spec("gives index, nil, error for a closed channel", function()
    local ch = vigil.channel()
    ch:close()
    local index, value, err = select_ { ch:receiving() }
    assert.equal(1, index)
    assert.is_nil(value)
    assert_kind("closed", err)
  end)

  spec("gives index, nil, error for sending to a closed channel", function()
    local ch = vigil.channel(1)
    ch:close()
    local index, value, err = select_ { ch:sending "v" }
    assert.equal(1, index)
    assert.is_nil(value)
    assert_kind("closed", err)
  end)

  spec("drains a closed channel first (CH-04)", function()
    local ch = vigil.channel(1)
    ch:send "v"
    ch:close()
    assert.same({ 1, "v" }, { select_ { ch:receiving() } })
    assert_kind("closed", (select(3, select_ { ch:receiving() })))
  end)

  spec("closed while it waits: that case, and no waiter is left (R63)",
    function()
      local a, b, c = vigil.channel(), vigil.channel(), vigil.channel()
      local co = started(function()
        return select_ { a:receiving(), b:receiving(), c:sending "x" }
      end)
      b:close()
      assert_nobody_waits(a)
      assert_nobody_waits(c)
      assert.is_false(a:try_send "not consumed")
      assert.is_nil((c:try_recv()))
      local index, value, err = await(co)
      assert.equal(2, index)
      assert.is_nil(value)
      assert_kind("closed", err)
    end)

  spec("closed while it waits to send (R63)", function()
    local a, b = vigil.channel(), vigil.channel()
    local co = started(function()
      return select_ { a:sending(1), b:receiving() }
    end)
    a:close()
    assert_nobody_waits(b)
    local index, value, err = await(co)
    assert.equal(1, index)
    assert.is_nil(value)
    assert_kind("closed", err)
  end)

  spec("closed after it was promised a slot", function()
    local ch, other = vigil.channel(1), vigil.channel()
    ch:send(0)
    local co = started(function()
      return select_ { other:receiving(), ch:sending(1) }
    end)
    assert.equal(0, ch:try_recv())
    ch:close()
    local index, value, err = await(co)
    assert.equal(2, index)
    assert.is_nil(value)
    assert_kind("closed", err)
    assert.equal(0, #ch)
  end)
end)

describe("a cancelled select", function()
  spec("leaves no waiter behind (R63)", function()
    local a, b, c = vigil.channel(), vigil.channel(), vigil.channel()
    local co = started(function()
      select_ { a:receiving(), b:receiving(), c:sending "x" }
    end)
    co:cancel()
    assert_nobody_waits(a)
    assert_nobody_waits(b)
    assert_nobody_waits(c)
    assert_kind("cancelled", (select(2, pawait(co))))
  end)

  spec("hands a granted value on to the next receiver", function()
    local ch, got = vigil.channel(), nil
    local victim = started(function()
      select_ { vigil.channel():receiving(), ch:receiving() }
    end)
    local other = started(function() got = ch:recv() end)
    assert.is_true(ch:try_send "v")
    victim:cancel()
    await(other)
    assert.equal("v", got)
  end)

  spec("gives a granted value back to the channel (DESIGN 5.25)", function()
    local ch = vigil.channel()
    local victim = started(function()
      select_ { vigil.channel():receiving(), vigil.timeout(9),
        ch:receiving() }
    end)
    assert.is_true(ch:try_send "v")
    victim:cancel()
    assert.equal(1, #ch)
    settle()
    assert.same({ 1, "v" }, { select_ { ch:receiving() } })
  end)

  spec("hands a granted slot on to the next sender (CH-09)", function()
    local ch = vigil.channel(1)
    ch:send(0)
    local victim = started(function()
      select_ { ch:sending "victim's", vigil.channel():receiving() }
    end)
    local other = started(function() ch:send "other's" end)
    assert.equal(0, ch:try_recv())
    victim:cancel()
    await(other)
    assert.equal("other's", ch:try_recv())
    assert.is_nil((ch:try_recv()))
  end)

  spec("raises before any effect when it was cancelled before (DESIGN 5.5)",
    function()
      local ch = vigil.channel(1)
      local co = spawn(function()
        vigil.current():cancel()
        select_ { ch:sending "x", default = true }
      end)
      assert.is_false(pawait(co))
      assert.equal(0, #ch)
    end)

  spec("with a user awaitable tells it, once", function()
    local user = user_awaitable()
    local co = started(function() select_ { user, vigil.timeout(9) } end)
    co:cancel()
    pawait(co)
    assert.equal(1, user.cancelled)
    assert.is_false(user.waker:resolve "late")
  end)

  spec("by a with_timeout around it leaves nothing (R63)", function()
    local a, b = vigil.channel(), vigil.channel()
    local ok, err = pcall(vigil.with_timeout, 0.002, function()
      select_ { a:receiving(), b:sending(1) }
    end)
    assert.is_false(ok)
    assert_kind("timeout", err)
    assert_nobody_waits(a)
    assert_nobody_waits(b)
  end)
end)

describe("select and user-defined awaitables", function()
  spec("takes one that is ready at once (DESIGN 5.28)", function()
    local user = user_awaitable(function(waker) waker:resolve("a", "b") end)
    assert.same({ 1, "a", "b" }, { select_ { user } })
    assert.equal(0, user.cancelled)
  end)

  spec("is woken by one", function()
    local user = user_awaitable()
    spawn(function() user.waker:resolve "v" end)
    assert.same({ 2, "v" },
      { select_ { vigil.channel():receiving(), user } })
    assert.equal(0, user.cancelled)
  end)

  spec("gives index, nil, error for one that rejects", function()
    local user = user_awaitable()
    spawn(function() user.waker:reject "why" end)
    local index, value, err = select_ { user }
    assert.equal(1, index)
    assert.is_nil(value)
    assert.equal("why", err)
  end)

  spec("tells the losers, and only them, once", function()
    local lost, won = user_awaitable(), user_awaitable()
    spawn(function() won.waker:resolve() end)
    assert.equal(2, (select_ { lost, won }))
    assert.equal(1, lost.cancelled)
    assert.equal(0, won.cancelled)
    assert.is_false(lost.waker:resolve "late")
    assert.is_false(lost.waker:reject "late")
  end)

  spec("tells the losers when another was ready at once", function()
    local lost, ch = user_awaitable(), vigil.channel(1)
    assert.equal(2, (select_ { lost, ch:sending(1) }))
    assert.equal(1, lost.cancelled)
  end)

  spec("takes only one of two that resolve in the same tick", function()
    local a, b = user_awaitable(), user_awaitable()
    local late
    spawn(function()
      a.waker:resolve "a"
      late = b.waker:resolve "b"
    end)
    assert.same({ 1, "a" }, { select_ { a, b } })
    assert.is_true(late ~= nil)
  end)

  spec("tells those before one whose __await raises", function()
    local first = user_awaitable()
    local bad = user_awaitable(function() error("broken", 0) end)
    local ok, err = pcall(select_, { first, bad })
    assert.is_false(ok)
    assert.equal("broken", err)
    assert.equal(1, first.cancelled)
  end)
end)

describe("misuse of select", function()
  spec("is refused: no table", function()
    assert.is_false(pcall(select_, 1))
  end)

  spec("is refused: no cases and no default", function()
    local ok, err = pcall(select_, {})
    assert.is_false(ok)
    assert.matches("no cases", err)
  end)

  spec("is refused: a case that is not awaitable, by its number", function()
    local user = user_awaitable()
    local ok, err = pcall(select_, { user, vigil.timeout(1), 42 })
    assert.is_false(ok)
    assert.matches("case 3: awaitable expected, got number", err)
    assert.equal(0, user.awaited) -- nothing was subscribed
  end)

  spec("is refused: a nil among the cases", function()
    local cases = { vigil.timeout(1), nil, vigil.timeout(1) }
    assert.is_false(pcall(select_, cases))
  end)

  spec("does not change the table of cases", function()
    local user = user_awaitable(function(waker) waker:resolve() end)
    local cases = { user }
    select_(cases)
    assert.equal(user, cases[1])
    assert.equal(1, #cases)
  end)
end)

describe("a select that nothing can end", function()
  it("is a deadlock, and says what it waits for (R31)", function()
    local code, out = helper.run_script [[
      local vigil = require "vigil"
      vigil.configure { warnings = false }
      local ok, err = pcall(vigil.run, function()
        local a, b = vigil.channel(), vigil.channel(3)
        local fine, e = pcall(vigil.select, { a:receiving(), b:receiving() })
        print(fine, e.kind, e.message:find "of 0" and e.message:find "of 3"
          and true)
      end)
      print(ok, err.kind)
    ]]
    assert.equal(0, code)
    assert.equal("false\tdeadlock\ttrue\nfalse\tdeadlock\n", out)
  end)

  spec("is none while a timer can", function()
    local ch = vigil.channel()
    assert.equal(2, (select_ { ch:receiving(), vigil.timer(0.002) }))
  end)
end)
