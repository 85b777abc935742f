-- Channels.  DESIGN 2.7, 3, 5.8, 5.9, 5.25; SEMANTICS CH; FIELD-REPORTS R30,
-- R56, R63, R64.

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

-- Lets everybody that can run get its turn.
local function settle()
  for _ = 1, 4 do suspend() end
end

local function assert_kind(kind, err)
  assert.is_true(vigil.is_error(err, kind),
    kind .. " expected, got " .. tostring(err))
end

-- A coroutine that receives once and tells the log what it got.
local function receiver(ch, log, name, token)
  return spawn(function()
    local value, err = ch:recv(token)
    if value == nil then value = err.kind end
    log[#log + 1] = name .. ":" .. tostring(value)
  end)
end

-- A coroutine that sends once and tells the log how that ended.
local function sender(ch, log, value, token)
  return spawn(function()
    local ok, err = ch:send(value, token)
    log[#log + 1] = tostring(value) .. ":" .. (ok and "sent" or err.kind)
  end)
end

local function drain(ch)
  local values = {}
  while true do
    local value = ch:try_recv()
    if value == nil then return values end
    values[#values + 1] = value
  end
end

describe("a rendezvous channel", function()
  spec("parks a sender until a receiver has come (CH-01, R64)", function()
    local ch, done = vigil.channel(), false
    local co = started(function()
      ch:send "x"
      done = true
    end)
    settle()
    assert.is_false(done)
    assert.equal("suspended", co.state)
    assert.equal("x", ch:recv())
    await(co)
    assert.is_true(done)
  end)

  spec("lets a send to a waiting receiver return at once (CH-01)", function()
    local ch, log = vigil.channel(), {}
    receiver(ch, log, "a")
    suspend()
    assert.is_true(ch:send(1))
    assert.same({}, log) -- no switch in between
    settle()
    assert.same({ "a:1" }, log)
  end)

  spec("parks a receiver until a sender has come (CH-01)", function()
    local ch, log = vigil.channel(), {}
    local co = receiver(ch, log, "a")
    settle()
    assert.equal("suspended", co.state)
    ch:send "v"
    await(co)
    assert.same({ "a:v" }, log)
  end)

  spec("hands over in both directions, many times (CH-01)", function()
    local ping, pong = vigil.channel(), vigil.channel()
    local co = spawn(function()
      for v in ping do pong:send(v + 1) end
    end)
    local value = 0
    for _ = 1, 500 do
      ping:send(value)
      value = pong:recv()
    end
    assert.equal(500, value)
    ping:close()
    await(co)
  end)

  spec("has no room of its own: try_send without receiver (CH-18)",
    function()
      local ch = vigil.channel()
      assert.is_false(ch:try_send(1))
      assert.equal(0, #ch)
    end)

  spec("lets try_send serve a waiting receiver (CH-18)", function()
    local ch, log = vigil.channel(), {}
    receiver(ch, log, "a")
    suspend()
    assert.is_true(ch:try_send(7))
    assert.is_false(ch:try_send(8))
    settle()
    assert.same({ "a:7" }, log)
  end)

  spec("lets try_recv take from a waiting sender", function()
    local ch, log = vigil.channel(), {}
    sender(ch, log, "v")
    suspend()
    assert.equal("v", ch:try_recv())
    assert.is_nil((ch:try_recv()))
    settle()
    assert.same({ "v:sent" }, log)
  end)
end)

describe("a buffered channel", function()
  spec("parks a send only when it is full (CH-02)", function()
    local ch, log = vigil.channel(2), {}
    sender(ch, log, 1)
    sender(ch, log, 2)
    local third = sender(ch, log, 3)
    settle()
    assert.same({ "1:sent", "2:sent" }, log)
    assert.equal("suspended", third.state)
    assert.equal(1, ch:recv())
    await(third)
    assert.same({ 2, 3 }, drain(ch))
  end)

  spec("parks a recv only when it is empty (CH-02)", function()
    local ch, log = vigil.channel(2), {}
    ch:send "a"
    assert.equal("a", ch:recv())
    local co = receiver(ch, log, "r")
    settle()
    assert.equal("suspended", co.state)
    ch:send "b"
    await(co)
    assert.same({ "r:b" }, log)
  end)

  spec("keeps the order over many wraps of its ring (CH-02)", function()
    local ch, expected = vigil.channel(3), 1
    for i = 1, 300 do
      if #ch == 3 then
        assert.equal(expected, ch:recv())
        expected = expected + 1
      end
      ch:send(i)
    end
    assert.same({ 298, 299, 300 }, drain(ch))
  end)

  spec("keeps the order while its ring grows (CH-02)", function()
    local ch = vigil.channel(1000)
    for i = 1, 5 do ch:send(i) end
    for i = 1, 4 do assert.equal(i, ch:recv()) end
    for i = 6, 1000 do ch:send(i) end
    for i = 5, 1000 do assert.equal(i, ch:recv()) end
    assert.equal(0, #ch)
  end)

  spec("says true, false and nil from try_send (CH-18)", function()
    local ch = vigil.channel(1)
    assert.is_true(ch:try_send(1))
    assert.is_false(ch:try_send(2))
    assert.same({ 1 }, drain(ch))
  end)

  spec("gives nil alone from try_recv when it is empty", function()
    local ch = vigil.channel(1)
    local value, err = ch:try_recv()
    assert.is_nil(value)
    assert.is_nil(err)
  end)

  spec("reports its capacity and how full it is (CH-22)", function()
    local ch = vigil.channel(5)
    assert.equal(5, ch.capacity)
    assert.equal(0, #ch)
    ch:send(1)
    ch:send(2)
    assert.equal(2, #ch)
    assert.equal(0, vigil.channel().capacity)
  end)

  spec("allocates only what it uses: a capacity of a thousand million",
    function()
      collectgarbage()
      local before = collectgarbage "count"
      local ch = vigil.channel(1000000000)
      ch:send(1)
      assert.is_true(collectgarbage "count" - before < 16)
      assert.equal(1, ch:recv())
    end)

  spec("keeps no value after it was received (GC-04)", function()
    local ch = vigil.channel(4)
    local weak = setmetatable({ {} }, { __mode = "v" })
    ch:send(weak[1])
    ch:recv()
    collectgarbage()
    assert.is_nil(weak[1])
  end)
end)

describe("what can be sent", function()
  spec("is not nil, and send says so", function()
    local ch = vigil.channel(1)
    local ok, err = pcall(ch.send, ch, nil)
    assert.is_false(ok)
    assert.matches("nil cannot be sent", err)
    assert.equal(0, #ch)
  end)

  spec("is not nil, for try_send", function()
    local ch = vigil.channel(1)
    local ok, err = pcall(ch.try_send, ch, nil)
    assert.is_false(ok)
    assert.matches("nil cannot be sent", err)
  end)

  spec("is not nil, for sending()", function()
    local ch = vigil.channel(1)
    local ok, err = pcall(ch.sending, ch, nil)
    assert.is_false(ok)
    assert.matches("nil cannot be sent", err)
  end)

  spec("is not nothing", function()
    local ch = vigil.channel(1)
    local ok, err = pcall(ch.send, ch)
    assert.is_false(ok)
    assert.matches("value expected", err)
  end)

  spec("may be false, through the buffer", function()
    local ch = vigil.channel(1)
    ch:send(false)
    assert.is_false(ch:recv())
  end)

  spec("may be false, from hand to hand", function()
    local ch, got = vigil.channel(), "nothing"
    local co = started(function() got = ch:recv() end)
    ch:send(false)
    await(co)
    assert.is_false(got)
  end)

  spec("arrives as the same value, whatever it is", function()
    local ch = vigil.channel(8)
    local values = { {}, print, 1.5, 2, "s", coroutine.create(print), ch }
    for _, v in ipairs(values) do ch:send(v) end
    for _, v in ipairs(values) do assert.equal(v, ch:recv()) end
  end)
end)

describe("misuse of a channel", function()
  spec("is refused: a negative capacity", function()
    local ok, err = pcall(vigil.channel, -1)
    assert.is_false(ok)
    assert.matches("capacity", err)
  end)

  spec("is refused: a capacity that is no integer", function()
    assert.is_false(pcall(vigil.channel, 1.5))
  end)

  spec("is refused: a method called on something else", function()
    local ok, err = pcall(vigil.channel().recv, {})
    assert.is_false(ok)
    assert.matches("vigil.channel expected, got table", err)
  end)

  spec("is refused: a channel as a token", function()
    local ch = vigil.channel()
    local ok, err = pcall(ch.recv, ch, vigil.channel())
    assert.is_false(ok)
    assert.matches("timeout", err)
  end)

  spec("is refused: a negative timeout, before anything is sent", function()
    local ch = vigil.channel(1)
    assert.is_false(pcall(ch.send, ch, 1, -1))
    assert.equal(0, #ch)
  end)
end)

describe("order among waiters", function()
  spec("is first come, first served: receivers (CH-01)", function()
    local ch, log = vigil.channel(), {}
    for i = 1, 5 do receiver(ch, log, "r" .. i) end
    suspend()
    for i = 1, 5 do ch:send(i) end
    settle()
    assert.same({ "r1:1", "r2:2", "r3:3", "r4:4", "r5:5" }, log)
  end)

  spec("is first come, first served: senders (CH-17)", function()
    local ch, log = vigil.channel(), {}
    for i = 1, 5 do sender(ch, log, i) end
    suspend()
    local got = {}
    for i = 1, 5 do got[i] = ch:recv() end
    assert.same({ 1, 2, 3, 4, 5 }, got)
    settle()
    assert.same({ "1:sent", "2:sent", "3:sent", "4:sent", "5:sent" }, log)
  end)

  spec("is kept for senders that wait for room (CH-17)", function()
    local ch, log = vigil.channel(1), {}
    for i = 1, 4 do sender(ch, log, i) end
    suspend()
    local got = {}
    for i = 1, 4 do got[i] = ch:recv() end
    assert.same({ 1, 2, 3, 4 }, got)
  end)

  spec("owes a free slot to the sender it woke: try_send (CH-07)", function()
    local ch, log = vigil.channel(1), {}
    ch:send "first"
    sender(ch, log, "waits")
    suspend()
    assert.equal("first", ch:try_recv())
    assert.is_false(ch:try_send "late")
    settle()
    assert.same({ "waits:sent" }, log)
    assert.same({ "waits" }, drain(ch))
  end)

  spec("owes a free slot to the sender it woke: send parks (CH-07)",
    function()
      local ch, log = vigil.channel(1), {}
      ch:send "first"
      sender(ch, log, "waits")
      suspend()
      assert.equal("first", ch:try_recv())
      local ok, err = ch:send("late", 0)
      assert.is_nil(ok)
      assert_kind("timeout", err)
      assert.same({ "waits" }, drain(ch))
    end)

  spec("lets a receiver take from a sender that was promised a slot (CH-07)",
    function()
      local ch, log = vigil.channel(1), {}
      ch:send "first"
      sender(ch, log, "waits")
      suspend()
      assert.equal("first", ch:try_recv())
      assert.equal("waits", ch:try_recv())
      settle()
      assert.same({ "waits:sent" }, log)
      assert.equal(0, #ch)
    end)

  spec("does not let a newcomer overtake a promised sender (CH-07)",
    function()
      local ch, log = vigil.channel(1), {}
      ch:send "first"
      sender(ch, log, "older")
      suspend()
      receiver(ch, log, "r") -- both run before the sender that is woken now
      sender(ch, log, "newer")
      assert.equal("first", ch:try_recv())
      settle()
      assert.same({ "newer" }, drain(ch))
      table.sort(log)
      assert.same({ "newer:sent", "older:sent", "r:older" }, log)
    end)

  spec("grants the slots of several receives in order (CH-17)", function()
    local ch, log = vigil.channel(2), {}
    for i = 1, 6 do sender(ch, log, i) end
    suspend()
    assert.equal(1, ch:try_recv())
    assert.equal(2, ch:try_recv())
    settle()
    assert.same({ "1:sent", "2:sent", "3:sent", "4:sent" }, log)
    assert.same({ 3, 4 }, { ch:recv(), ch:recv() })
    assert.same({ 5, 6 }, { ch:recv(), ch:recv() })
  end)
end)

describe("close", function()
  spec("refuses later sends (CH-04)", function()
    local ch = vigil.channel(1)
    ch:close()
    local ok, err = ch:send(1)
    assert.is_nil(ok)
    assert_kind("closed", err)
    assert.equal(0, #ch)
  end)

  spec("refuses a later try_send with an error (CH-18)", function()
    local ch = vigil.channel(1)
    ch:close()
    local ok, err = ch:try_send(1)
    assert.is_nil(ok)
    assert_kind("closed", err)
  end)

  spec("lets receivers drain the buffer first (CH-04, R64)", function()
    local ch = vigil.channel(2)
    ch:send(1)
    ch:send(false)
    ch:close()
    assert.equal(1, ch:recv())
    assert.is_false(ch:recv())
    local value, err = ch:recv()
    assert.is_nil(value)
    assert_kind("closed", err)
  end)

  spec("lets try_recv drain the buffer first (CH-04)", function()
    local ch = vigil.channel(1)
    ch:send(1)
    ch:close()
    assert.equal(1, ch:try_recv())
    local value, err = ch:try_recv()
    assert.is_nil(value)
    assert_kind("closed", err)
  end)

  spec("wakes every waiting receiver (CH-05)", function()
    local ch, log = vigil.channel(), {}
    for i = 1, 3 do receiver(ch, log, "r" .. i) end
    suspend()
    ch:close()
    settle()
    assert.same({ "r1:closed", "r2:closed", "r3:closed" }, log)
  end)

  spec("wakes every waiting sender, the value is withdrawn (CH-05, CH-14)",
    function()
      local ch, log = vigil.channel(1), {}
      ch:send "kept"
      for i = 1, 3 do sender(ch, log, i) end
      suspend()
      ch:close()
      settle()
      assert.same({ "1:closed", "2:closed", "3:closed" }, log)
      assert.same({ "kept" }, drain(ch))
    end)

  spec("withdraws the value of a rendezvous sender (CH-14)", function()
    local ch, log = vigil.channel(), {}
    sender(ch, log, 1)
    suspend()
    ch:close()
    assert.is_nil((ch:try_recv()))
    settle()
    assert.same({ "1:closed" }, log)
  end)

  spec("may be called twice (CH-05)", function()
    local ch = vigil.channel()
    ch:close()
    ch:close()
    assert.is_true(ch:is_closed())
  end)

  spec("is seen by is_closed", function()
    local ch = vigil.channel(1)
    assert.is_false(ch:is_closed())
    ch:send(1)
    ch:close()
    assert.is_true(ch:is_closed()) -- though it is not drained
  end)

  spec("does not fail a sender whose value was taken (CH-12)", function()
    local ch, log = vigil.channel(), {}
    sender(ch, log, "v")
    suspend()
    assert.equal("v", ch:try_recv())
    ch:close()
    settle()
    assert.same({ "v:sent" }, log)
  end)

  spec("does not fail a receiver that was handed a value (CH-15)", function()
    local ch, log = vigil.channel(), {}
    receiver(ch, log, "r")
    suspend()
    ch:try_send "v"
    ch:close()
    settle()
    assert.same({ "r:v" }, log)
  end)

  spec("after one value serves one of two receivers (CH-16)", function()
    local ch, log = vigil.channel(2), {}
    receiver(ch, log, "a")
    receiver(ch, log, "b")
    suspend()
    ch:send(1)
    ch:close()
    settle()
    assert.same({ "a:1", "b:closed" }, log)
  end)

  spec("fails a sender that was promised a slot and has not run", function()
    local ch, log = vigil.channel(1), {}
    ch:send "first"
    sender(ch, log, "v")
    suspend()
    assert.equal("first", ch:try_recv())
    ch:close()
    assert.is_nil((ch:try_recv())) -- nor is its value taken any more
    settle()
    assert.same({ "v:closed" }, log)
    assert.equal(0, #ch)
  end)

  spec("happens at the end of a <close> variable (DESIGN 5.10)", function()
    local kept
    do
      local ch <close> = vigil.channel()
      kept = ch
    end
    assert.is_true(kept:is_closed())
  end)

  spec("gives an error with code and one readable line", function()
    local ch = vigil.channel()
    ch:close()
    local _, err = ch:recv()
    assert.is_string(err.code)
    assert.matches("the channel is closed", tostring(err))
  end)
end)

describe("for v in ch", function()
  spec("ends when the channel is closed and drained (R64)", function()
    local ch, got = vigil.channel(3), {}
    for i = 1, 3 do ch:send(i) end
    ch:close()
    for v in ch do got[#got + 1] = v end
    assert.same({ 1, 2, 3 }, got)
  end)

  spec("waits for what is still to come", function()
    local ch, got = vigil.channel(), {}
    spawn(function()
      for i = 1, 5 do
        ch:send(i)
        if i % 2 == 0 then sleep(0.001) end
      end
      ch:close()
    end)
    for v in ch do got[#got + 1] = v end
    assert.same({ 1, 2, 3, 4, 5 }, got)
  end)

  spec("is shared by several loops, each value once", function()
    local ch, seen = vigil.channel(), {}
    local workers = {}
    for i = 1, 4 do
      workers[i] = spawn(function()
        for v in ch do
          seen[v] = (seen[v] or 0) + 1
          suspend()
        end
      end)
    end
    for i = 1, 100 do ch:send(i) end
    ch:close()
    vigil.await_all(workers)
    for i = 1, 100 do assert.equal(1, seen[i]) end
  end)

  spec("may be left with break: the rest stays in the channel", function()
    local ch = vigil.channel(3)
    for i = 1, 3 do ch:send(i) end
    for v in ch do
      if v == 2 then break end
    end
    assert.same({ 3 }, drain(ch))
  end)
end)

describe("tokens of send and recv", function()
  spec("end a waiting recv: a number (CH-21, DESIGN 5.9)", function()
    local ch = vigil.channel()
    local value, err = ch:recv(0.005)
    assert.is_nil(value)
    assert_kind("timeout", err)
    assert.equal("ETIMEDOUT", err.code)
  end)

  spec("end a waiting send: a number (CH-21)", function()
    local ch = vigil.channel()
    local ok, err = ch:send(1, 0.005)
    assert.is_nil(ok)
    assert_kind("timeout", err)
    assert.is_nil((ch:try_recv()))
  end)

  spec("end a wait: a timeout object, which is err.token (CH-21)", function()
    local ch, token = vigil.channel(), vigil.timeout(0.005)
    local _, err = ch:recv(token)
    assert_kind("timeout", err)
    assert.equal(token, err.token)
  end)

  spec("end a wait: a coroutine, kind cancelled (CH-21)", function()
    local ch = vigil.channel()
    local stop = spawn(sleep, 0.002)
    local _, err = ch:recv(stop)
    assert_kind("cancelled", err)
    assert.equal(stop, err.token)
    assert.is_nil(err.cause)
  end)

  spec("end a wait: a future that fails is the cause (CH-21)", function()
    local ch = vigil.channel()
    local future, promise = vigil.future()
    spawn(function() promise:fail "why" end)
    local _, err = ch:send(1, future)
    assert_kind("cancelled", err)
    assert.equal("why", err.cause)
  end)

  spec("that fired before stop a recv before it takes (CH-21)", function()
    local ch = vigil.channel(1)
    ch:send "kept"
    local future, promise = vigil.future()
    promise:complete()
    local value, err = ch:recv(future)
    assert.is_nil(value)
    assert_kind("cancelled", err)
    assert.same({ "kept" }, drain(ch))
  end)

  spec("that fired before stop a send before it sends (CH-21)", function()
    local ch, token = vigil.channel(1), vigil.timeout(0)
    sleep(0.002)
    local ok, err = ch:send("x", token)
    assert.is_nil(ok)
    assert_kind("timeout", err)
    assert.equal(0, #ch)
  end)

  spec("of 0 let a send with room succeed (R30)", function()
    local ch = vigil.channel(1)
    assert.is_true(ch:send(1, 0))
  end)

  spec("of 0 let a recv of what is there succeed (R30)", function()
    local ch = vigil.channel(1)
    ch:send(1)
    assert.equal(1, ch:recv(0))
  end)

  spec("of 0 poll once before they end a wait", function()
    local ch = vigil.channel()
    spawn(function() ch:send "just in time" end)
    local value, err = ch:recv(0)
    assert.is_nil(err)
    assert.equal("just in time", value)
  end)

  spec("are unsubscribed when a value came first", function()
    local ch, stop = vigil.channel(1), vigil.timeout(60)
    spawn(function() ch:send(1) end)
    assert.equal(1, ch:recv(stop))
    assert.equal(0, core.counts().timers)
  end)

  spec("that end a wait leave no waiter behind (R56)", function()
    local ch = vigil.channel()
    ch:recv(0.001)
    assert.is_false(ch:try_send "lost?")
    ch:send("x", 0.001)
    assert.is_nil((ch:try_recv()))
  end)

  spec("lose against a value of the same tick that came before", function()
    local ch = vigil.channel()
    local stop, fire = vigil.future()
    local value, err
    local co = started(function() value, err = ch:recv(stop) end)
    ch:try_send "v"
    fire:complete()
    await(co)
    assert.equal("v", value)
    assert.is_nil(err)
  end)

  spec("win against a value of the same tick that came after", function()
    local ch = vigil.channel()
    local stop, fire = vigil.future()
    local value, err
    local co = started(function() value, err = ch:recv(stop) end)
    fire:complete()
    assert.is_false(ch:try_send "v")
    await(co)
    assert.is_nil(value)
    assert_kind("cancelled", err)
  end)

  spec("that fail count as caught, even when there was no wait (AW-08)",
    function()
      local reported = 0
      vigil.on_unhandled(function() reported = reported + 1 end)
      local ch = vigil.channel(1)
      do
        local future, promise = vigil.future()
        promise:fail "not seen"
        pcall(ch.send, ch, 1, future)
        local other = vigil.future()
        ch:send(2, other)
      end
      collectgarbage()
      collectgarbage()
      vigil.on_unhandled(nil)
      assert.equal(0, reported)
    end)
end)

describe("with_timeout(0) around a channel call", function()
  spec("lets a send with room succeed (R30)", function()
    local ch = vigil.channel(1)
    assert.is_true(vigil.with_timeout(0, function() return ch:send(1) end))
  end)

  spec("ends a recv that must wait (R30)", function()
    local ch = vigil.channel(1)
    local ok, err = pcall(vigil.with_timeout, 0, function()
      return ch:recv()
    end)
    assert.is_false(ok)
    assert_kind("timeout", err)
  end)
end)

describe("a cancelled receiver", function()
  spec("that waits is taken out of the queue (R56)", function()
    local ch, log = vigil.channel(), {}
    receiver(ch, log, "a")
    local victim = receiver(ch, log, "b")
    receiver(ch, log, "c")
    suspend()
    victim:cancel()
    ch:send(1)
    ch:send(2)
    settle()
    assert.same({ "a:1", "c:2" }, log)
  end)

  spec("gives its value to the next one in the queue", function()
    local ch, log = vigil.channel(), {}
    local victim = receiver(ch, log, "a")
    receiver(ch, log, "b")
    suspend()
    ch:send "v"
    assert.is_true(victim:cancel())
    settle()
    assert.same({ "b:v" }, log)
    assert.equal("cancelled", victim.state)
  end)

  spec("gives its value back when nobody waits (DESIGN 5.25)", function()
    local ch, log = vigil.channel(), {}
    local victim = receiver(ch, log, "a")
    suspend()
    ch:send "v"
    victim:cancel()
    settle()
    assert.equal(1, #ch)
    assert.equal("v", ch:recv())
    assert.same({}, log)
  end)

  spec("puts its value in front of what was sent later (DESIGN 5.25)",
    function()
      local ch, log = vigil.channel(2), {}
      local victim = receiver(ch, log, "a")
      suspend()
      ch:send(1)
      ch:send(2)
      ch:send(3)
      victim:cancel()
      assert.equal(3, #ch) -- one more than its capacity, for a while
      assert.is_false(ch:try_send(4))
      assert.same({ 1, 2, 3 }, drain(ch))
      settle()
      assert.same({}, log)
    end)

  spec("keeps the order of values among those woken after it", function()
    local ch, log = vigil.channel(), {}
    receiver(ch, log, "a")
    local victim = receiver(ch, log, "b")
    receiver(ch, log, "c")
    receiver(ch, log, "d")
    suspend()
    for i = 1, 4 do ch:send(i) end
    victim:cancel()
    settle()
    assert.same({ "a:1", "c:2", "d:3" }, log)
    assert.same({ 4 }, drain(ch))
  end)

  spec("and all of them: every value comes back, in order", function()
    local ch, log, all = vigil.channel(), {}, {}
    for i = 1, 5 do all[i] = receiver(ch, log, "r" .. i) end
    suspend()
    for i = 1, 5 do ch:send(i) end
    for _, i in ipairs { 3, 1, 5, 2, 4 } do all[i]:cancel() end
    assert.same({ 1, 2, 3, 4, 5 }, drain(ch))
    settle()
    assert.same({}, log)
  end)

  spec("does not lose the value of a send that succeeded (R64)", function()
    local ch, log = vigil.channel(), {}
    local victim = receiver(ch, log, "a")
    suspend()
    assert.is_true(ch:send "v")
    victim:cancel()
    ch:close()
    assert.equal("v", ch:recv())
    assert_kind("closed", select(2, ch:recv()))
  end)

  spec("that has its value and runs keeps it", function()
    local ch, got = vigil.channel(), nil
    local co = started(function()
      got = ch:recv()
      suspend()
    end)
    ch:send "v"
    suspend()
    co:cancel()
    settle()
    assert.equal("v", got)
    assert.equal(0, #ch)
  end)

  spec("in a generator gives its value on", function()
    local ch, log = vigil.channel(), {}
    local victim = started(function()
      for v in vigil.coroutine.wrap(function()
        vigil.coroutine.yield(ch:recv())
      end) do
        log[#log + 1] = v
      end
    end)
    ch:send "v"
    victim:cancel()
    settle()
    assert.same({}, log)
    assert.equal("v", ch:try_recv())
  end)

  spec("inside protect takes its value", function()
    local ch, got = vigil.channel(), nil
    local co = started(function()
      vigil.protect(function() got = ch:recv() end)
    end)
    ch:send "v"
    co:cancel()
    settle()
    assert.equal("v", got)
  end)
end)

describe("a cancelled sender", function()
  spec("that waits withdraws its value (R56)", function()
    local ch, log = vigil.channel(), {}
    local victim = sender(ch, log, 1)
    sender(ch, log, 2)
    suspend()
    victim:cancel()
    assert.equal(2, ch:recv())
    settle()
    assert.same({ "2:sent" }, log)
  end)

  spec("gives its slot to the next sender (CH-09)", function()
    local ch, log = vigil.channel(1), {}
    ch:send(0)
    local victim = sender(ch, log, 1)
    sender(ch, log, 2)
    suspend()
    assert.equal(0, ch:try_recv())
    victim:cancel()
    assert.is_false(ch:try_send "late")
    settle()
    assert.same({ "2:sent" }, log)
    assert.same({ 2 }, drain(ch))
  end)

  spec("frees its slot when no other sender waits (CH-09)", function()
    local ch, log = vigil.channel(1), {}
    ch:send(0)
    local victim = sender(ch, log, 1)
    suspend()
    assert.equal(0, ch:try_recv())
    victim:cancel()
    assert.is_true(ch:try_send "free")
    settle()
    assert.same({ "free" }, drain(ch))
  end)

  spec("whose value was taken sees the cancellation (CH-13)", function()
    local ch = vigil.channel()
    local victim = started(function() ch:send "v" end)
    assert.equal("v", ch:try_recv())
    victim:cancel()
    local ok, err = pawait(victim)
    assert.is_false(ok)
    assert_kind("cancelled", err)
    assert.is_nil((ch:try_recv())) -- and the value is not there twice
  end)

  spec("whose promised value was taken leaves nothing behind (CH-13)",
    function()
      local ch, log = vigil.channel(1), {}
      ch:send(0)
      local victim = sender(ch, log, 1)
      sender(ch, log, 2)
      suspend()
      assert.equal(0, ch:try_recv())
      assert.equal(1, ch:try_recv())
      victim:cancel()
      settle()
      assert.same({ "2:sent" }, log)
      assert.same({ 2 }, drain(ch))
    end)

  spec("raises before any effect when it was cancelled before (DESIGN 5.5)",
    function()
      local ch = vigil.channel(1)
      local co = spawn(function()
        vigil.current():cancel()
        ch:send "x"
      end)
      assert.is_false(pawait(co))
      assert.equal(0, #ch)
    end)
end)

describe("try_send and try_recv", function()
  spec("are no suspension points: they work when cancelled (DESIGN 5.5)",
    function()
      local ch = vigil.channel(1)
      local sent, got
      local co = spawn(function()
        vigil.current():cancel()
        sent = ch:try_send "x"
        got = ch:try_recv()
      end)
      pawait(co)
      assert.is_true(sent)
      assert.equal("x", got)
    end)

  it("work in the main chunk, without a run", function()
    local ch = vigil.channel(1)
    assert.is_true(ch:try_send(1))
    assert.equal(1, ch:try_recv())
  end)

  spec("work in a finalizer, whenever it runs (GC-01)", function()
    collectgarbage "generational"
    local ch = vigil.channel(2000)
    local sent = 0
    local mt = { __gc = function()
      if ch:try_send "from a finalizer" then sent = sent + 1 end
    end }
    for _ = 1, 200 do
      setmetatable({}, mt)
      vigil.channel(4):try_send {}
    end
    collectgarbage()
    collectgarbage "incremental"
    assert.is_true(sent > 0)
    assert.equal(sent, #drain(ch))
  end)

  -- The collector may run a finalizer at any allocation, also at one that a
  -- wait makes between looking at the channel and waiting.
  -- (Full collections in between make the object old: not then.)
  if not os.getenv "VIGIL_GC_EVERY" then
    local function finalized_inside(ch, wait)
      local before = collectgarbage "generational"
      collectgarbage()
      collectgarbage "stop"
      setmetatable({}, { __gc = function() ch:try_send "v" end })
      collectgarbage "restart"
      local value = wait(ch)
      collectgarbage(before)
      return value
    end

    spec("in a finalizer do not slip past a recv that is about to wait",
      function()
        assert.equal("v", finalized_inside(vigil.channel(1), function(ch)
          return (ch:recv(0.5))
        end))
      end)

    spec("in a finalizer do not slip past an await that is about to wait",
      function()
        assert.equal("v", finalized_inside(vigil.channel(1), function(ch)
          local _, value = pawait(ch, 0.5)
          return value
        end))
      end)

    spec("in a finalizer do not slip past a select that is about to wait",
      function()
        local other = vigil.channel()
        local cases = { vigil.channel(1), other, vigil.timeout(0.5) }
        assert.equal(1, finalized_inside(cases[1], function()
          return (vigil.select(cases))
        end))
      end)
  end
end)

describe("channels in the main chunk", function()
  it("recv drives the loop", function()
    local ch = vigil.channel()
    vigil.spawn(function()
      vigil.sleep(0.002)
      ch:send "v"
    end)
    assert.equal("v", ch:recv())
  end)

  it("send drives the loop", function()
    local ch, got = vigil.channel(), nil
    local co = vigil.spawn(function() got = ch:recv() end)
    assert.is_true(ch:send "v")
    vigil.await(co)
    assert.equal("v", got)
  end)

  it("a value given back by a cancelled coroutine arrives there", function()
    local code, out, err = helper.run_script [[
      local vigil = require "vigil"
      vigil.configure { warnings = false }
      local ch = vigil.channel()
      local victim
      vigil.spawn(function()
        victim = vigil.spawn(function() return ch:recv() end)
        vigil.suspend()
        vigil.suspend()
        ch:try_send "v"
        victim:cancel()
      end)
      vigil.sleep(0)
      print(ch:recv())
    ]]
    assert.equal("", err)
    assert.equal("v\n", out)
    assert.equal(0, code)
  end)

  it("an error that cancels everybody loses no value", function()
    local code, out = helper.run_script [[
      local vigil = require "vigil"
      vigil.configure { warnings = false }
      local ch = vigil.channel()
      vigil.spawn(function() ch:recv() end)
      vigil.spawn(function()
        vigil.suspend() -- now the coroutine above and the main chunk wait
        ch:try_send "v"
        error("boom", 0)
      end)
      local ok, value = pcall(ch.recv, ch)
      local left = ch:try_recv()
      print(ok, value, left)
    ]]
    assert.equal(0, code)
    assert.is_true(out == "true\tv\tnil\n" or out == "false\tboom\tv\n", out)
  end)

  it("a wait that nothing can end is a deadlock", function()
    local code, out = helper.run_script [[
      local vigil = require "vigil"
      vigil.configure { warnings = false }
      local ch = vigil.channel()
      local ok, err = pcall(ch.recv, ch)
      print(ok, err.kind)
      print(ch:try_send(1))
    ]]
    assert.equal(0, code)
    assert.equal("false\tdeadlock\nfalse\n", out)
  end)
end)

describe("a channel nobody else can reach", function()
  it("deadlocks its receiver: raised, and the run fails (DESIGN 5.7, R31)",
    function()
      local code, out = helper.run_script [[
        local vigil = require "vigil"
        vigil.configure { warnings = false }
        local kind
        local ok, err = pcall(vigil.run, function()
          local _, e = pcall(function() return vigil.channel():recv() end)
          kind = e.kind
        end)
        print(kind, ok, err.kind)
      ]]
      assert.equal(0, code)
      assert.equal("deadlock\tfalse\tdeadlock\n", out)
    end)

  it("two that wait for each other's channel are both told (R31)", function()
    local code, out = helper.run_script [[
      local vigil = require "vigil"
      vigil.configure { warnings = false }
      local a, b = vigil.channel(), vigil.channel()
      local kinds = {}
      local ok, err = pcall(vigil.run, function()
        for i, pair in ipairs { { a, b }, { b, a } } do
          vigil.spawn(function()
            local fine, e = pcall(function()
              local v = pair[1]:recv()
              pair[2]:send(v)
            end)
            kinds[i] = not fine and e.kind
          end)
        end
      end)
      print(kinds[1], kinds[2], ok, err.kind)
    ]]
    assert.equal(0, code)
    assert.equal("deadlock\tdeadlock\tfalse\tdeadlock\n", out)
  end)
end)

describe("a channel as an awaitable", function()
  spec("is received from by await (receiving)", function()
    local ch = vigil.channel(1)
    ch:send "v"
    assert.equal("v", await(ch:receiving()))
  end)

  spec("waits in await", function()
    local ch = vigil.channel()
    spawn(function()
      sleep(0.001)
      ch:send "v"
    end)
    assert.equal("v", await(ch:receiving()))
  end)

  spec("raises in await when it is closed", function()
    local ch = vigil.channel()
    ch:close()
    local ok, err = pawait(ch:receiving())
    assert.is_false(ok)
    assert_kind("closed", err)
  end)

  spec("raises in an await that waits when it is closed", function()
    local ch = vigil.channel()
    local co = started(function() return pawait(ch:receiving()) end)
    ch:close()
    local _, ok, err = pawait(co)
    assert.is_false(ok)
    assert_kind("closed", err)
  end)

  spec("sends by await(ch:sending(v))", function()
    local ch = vigil.channel()
    local co = started(function() return await(ch:sending "v") end)
    assert.equal("v", ch:recv())
    assert.is_true(await(co))
  end)

  spec("has sent nothing when await's token fired first", function()
    local ch = vigil.channel()
    local ok, err = pawait(ch:sending "v", 0.001)
    assert.is_false(ok)
    assert_kind("timeout", err)
    assert.is_nil((ch:try_recv()))
  end)

  spec("sends again each time the same case is awaited", function()
    local ch = vigil.channel(2)
    local case = ch:sending "v"
    await(case)
    await(case)
    assert.same({ "v", "v" }, drain(ch))
  end)
end)

describe("tostring of a channel", function()
  spec("tells capacity, content and who waits (EV-12)", function()
    local ch, log = vigil.channel(2), {}
    ch:send(1)
    assert.matches("1 of 2", tostring(ch))
    ch:recv()
    receiver(ch, log, "a")
    suspend()
    assert.matches("1 receiving", tostring(ch))
    ch:close()
    assert.matches("closed", tostring(ch))
    settle()
  end)

  spec("tells of a sending case what it is", function()
    assert.matches("sending to channel", tostring(vigil.channel():sending(1)))
  end)
end)

describe("lifetime of a channel", function()
  spec("ends with its last reference, values and all (GC-04)", function()
    local weak = setmetatable({}, { __mode = "v" })
    do
      local value = {}
      local ch = vigil.channel(2)
      ch:send(value)
      weak.ch, weak.value = ch, value
    end
    collectgarbage()
    assert.is_nil(weak.ch)
    assert.is_nil(weak.value)
  end)

  spec("ends although it is in a cycle with its own values (GC-04)",
    function()
      local weak = setmetatable({}, { __mode = "v" })
      do
        local ch = vigil.channel(3)
        ch:send { channel = ch }
        ch:send(ch)
        ch:send(ch:sending { ch })
        weak.ch = ch
      end
      collectgarbage()
      assert.is_nil(weak.ch)
    end)

  spec("lasts as long as somebody waits in it", function()
    local weak = setmetatable({}, { __mode = "v" })
    local co
    do
      local ch = vigil.channel()
      weak.ch = ch
      co = started(function() ch:recv() end)
    end
    collectgarbage()
    assert.is_truthy(weak.ch)
    weak.ch:send(1)
    await(co)
  end)

  it("may end in any state with the Lua state (GC-08)", function()
    local code, out, err = helper.run_script [[
      local vigil = require "vigil"
      local full, empty = vigil.channel(1), vigil.channel()
      full:try_send {}
      for i = 1, 3 do
        vigil.spawn(function() full:send {} end)
        vigil.spawn(function() empty:recv() end)
        vigil.spawn(function()
          vigil.select { empty:receiving(), full:sending {} }
        end)
      end
      vigil.sleep(0.001)
      full:try_recv()      -- one is woken for a slot
      empty:try_send {}    -- one was handed a value
      print "end"
    ]]
    assert.equal("end\n", out)
    assert.equal("", err)
    assert.equal(0, code)
  end)
end)

describe("many at once", function()
  spec("10,000 messages of 100 senders arrive once and in order each",
    function()
      local ch, last, count = vigil.channel(7), {}, 0
      local senders = {}
      for s = 1, 100 do
        senders[s] = spawn(function()
          for i = 1, 100 do ch:send { s, i } end
        end)
      end
      spawn(function()
        vigil.await_all(senders)
        ch:close()
      end)
      for message in ch do
        local s, i = message[1], message[2]
        assert(i == (last[s] or 0) + 1)
        last[s] = i
        count = count + 1
      end
      assert.equal(10000, count)
    end)

  spec("an always-ready channel does not starve the others (R34)", function()
    local ch, turns, stop = vigil.channel(1), 0, false
    local other = spawn(function()
      while not stop do
        turns = turns + 1
        suspend()
      end
    end)
    for i = 1, 2000 do
      ch:send(i)
      ch:recv()
    end
    stop = true
    await(other)
    assert.is_true(turns >= 10, "turns: " .. turns)
  end)

  spec("random victims never leave the queue stuck (R56)", function()
    local random = 12345
    local function rnd(n)
      random = (random * 1103515245 + 12345) % 2147483648
      return random % n + 1
    end
    for round = 1, 300 do
      local ch, got, all = vigil.channel(rnd(3) - 1), {}, {}
      for i = 1, 5 do
        all[i] = spawn(function()
          local v = ch:recv()
          got[#got + 1] = v
        end)
      end
      suspend()
      local sent = {}
      for i = 1, 3 do
        if ch:try_send(i) then sent[#sent + 1] = i end
        if rnd(2) == 1 then all[rnd(5)]:cancel() end
      end
      settle()
      for _, v in ipairs(drain(ch)) do got[#got + 1] = v end
      assert.same(sent, got, "round " .. round)
      for i = 1, 5 do all[i]:cancel() end
      settle()
    end
  end)
end)
