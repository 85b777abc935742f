-- Triggers: DESIGN 2.5, 2.6; SEMANTICS TR, EV-12, EV-17, GC-07.  (Firing from
-- other threads is in c/test_trigger.c.)

local core = require "vigil.core"
local helper = require "spec.helper"
local vigil = require "vigil"

local spawn, sleep, suspend = vigil.spawn, vigil.sleep, vigil.suspend
local await, pawait = vigil.await, vigil.pawait

local function spec(name, fn)
  it(name, helper.in_vigil(fn))
end

local function started(fn, ...)
  local co = spawn(fn, ...)
  suspend()
  return co
end

local function collect()
  collectgarbage()
  collectgarbage()
end

local function assert_closed(ok, err)
  assert.is_false(ok)
  assert.is_true(vigil.is_error(err, "closed"), "closed expected, got " .. tostring(err))
  assert.equal("ECLOSED", err.code)
end

describe("a trigger", function()
  spec("wakes who waits, with how often it was fired", function()
    local trigger = vigil.trigger()
    local co = started(await, trigger)
    assert.is_true(trigger:fire())
    assert.equal(1, await(co))
    local ok, err = pawait(trigger, 0.001)
    assert.is_false(ok)
    assert.equal("timeout", err.kind)
  end)

  spec("merges firings and loses none", function()
    local trigger = vigil.trigger()
    local co = started(await, trigger)
    for _ = 1, 1000 do trigger:fire() end
    assert.equal(1000, await(co))
    local total, rounds = 0, 0
    local counter = spawn(function()
      while total < 5000 do
        total = total + await(trigger)
        rounds = rounds + 1
      end
    end)
    for i = 1, 5000 do
      trigger:fire()
      if i % 100 == 0 then suspend() end
    end
    await(counter)
    assert.equal(5000, total)
    assert.is_true(rounds <= 5000)
  end)

  spec("fired before the wait: the wait returns at once", function()
    local trigger = vigil.trigger()
    trigger:fire()
    trigger:fire()
    local co = spawn(function() error("it had to wait") end)
    assert.equal(2, await(trigger))
    co:cancel()
    trigger:fire()
    sleep(0.001) -- the loop has seen it, and nobody waited
    assert.equal(1, await(trigger))
  end)

  spec("tells all who wait", function()
    local trigger, waiting = vigil.trigger(), {}
    for i = 1, 10 do waiting[i] = started(await, trigger) end
    for _ = 1, 3 do trigger:fire() end
    for _, co in ipairs(waiting) do assert.equal(3, await(co)) end
    assert.is_false((pawait(trigger, 0)))
  end)

  spec("is not lost with a waiter that is cancelled before it runs", function()
    local trigger = vigil.trigger()
    local co = started(pawait, trigger)
    trigger:fire()
    while co.state == "suspended" do sleep(0) end
    co:cancel()
    pawait(co)
    assert.equal(1, await(trigger))
  end)

  spec("is fired by a coroutine that runs before its waiter parks", function()
    local trigger = vigil.trigger()
    for _ = 1, 100 do
      local co = spawn(await, trigger)
      spawn(function() trigger:fire() end)
      assert.equal(1, await(co))
    end
  end)

  spec("idle keeps nothing alive; awaited it does (TR-02)", function()
    local trigger = vigil.trigger()
    assert.equal(0, core.counts().active)
    local co = started(await, trigger)
    assert.equal(1, core.counts().active)
    trigger:fire()
    await(co)
    assert.equal(0, core.counts().active)
  end)

  it("that nobody awaits lets the run end (TR-02)", function()
    local trigger = vigil.trigger()
    vigil.run(function() end)
    trigger:close()
  end)

  it("that is awaited is no deadlock: another thread may fire it (DL-08)", function()
    local status = helper.run_script([[
      local vigil = require "vigil"
      vigil.await(vigil.trigger())
    ]], { timeout = helper.sanitized and 0.1 or 1 })
    assert.equal(124, status) -- it waits on
  end)

  it("fired waits in the main chunk too", function()
    local trigger = vigil.trigger()
    spawn(function() trigger:fire() end)
    assert.equal(1, await(trigger))
    trigger:close()
  end)

  spec("hidden is idle, not active (DL-08)", function()
    local trigger = vigil.trigger():hide()
    local co = started(pawait, trigger)
    assert.equal(0, core.counts().active)
    trigger:fire()
    sleep(0.001)
    local ok, count = await(co)
    assert.is_true(ok)
    assert.equal(1, count)
  end)

  spec("goes with select and await_any, and as a token (EV-17)", function()
    local trigger, never = vigil.trigger(), vigil.future()
    trigger:fire()
    local index, count = vigil.select { never, trigger }
    assert.equal(2, index)
    assert.equal(1, count)
    local co = started(vigil.select, { never, trigger })
    trigger:fire()
    assert.equal(2, (await(co)))
    trigger:fire()
    assert.equal(1, (vigil.await_any_or_fail { never, trigger }))
    co = started(pawait, never, trigger)
    trigger:fire()
    local ok, err = await(co)
    assert.is_false(ok)
    assert.equal("cancelled", err.kind)
    assert.equal(trigger, err.token)
  end)

  spec("in two cases of one select is one event twice", function()
    local trigger = vigil.trigger()
    local co = started(vigil.select, { trigger, trigger })
    trigger:fire()
    local index, count = await(co)
    assert.is_true(index == 1 or index == 2)
    assert.equal(1, count)
  end)

  spec("says what it is (EV-12)", function()
    local trigger = vigil.trigger()
    assert.equal("trigger", tostring(trigger))
    trigger:fire()
    assert.equal("trigger (fired 1 times)", tostring(trigger))
    trigger:close()
    assert.equal("trigger (closed)", tostring(trigger))
  end)
end)

describe("close()", function()
  spec("fails who waits, and every call after it (TR-03)", function()
    local trigger = vigil.trigger()
    local one, two = started(pawait, trigger), started(pawait, trigger)
    trigger:close()
    trigger:close()
    assert.is_true(trigger:is_closed())
    assert_closed(await(one))
    assert_closed(await(two))
    assert_closed(pawait(trigger))
    local ok, err = trigger:fire()
    assert.is_nil(ok)
    assert_closed(false, err)
    local index, nothing
    index, nothing, err = vigil.select { trigger }
    assert.equal(1, index)
    assert.is_nil(nothing)
    assert.equal("closed", err.kind)
  end)

  spec("after it fired, before its waiter ran: the waiter has it", function()
    local trigger = vigil.trigger()
    local co = started(await, trigger)
    trigger:fire()
    while co.state == "suspended" do sleep(0) end
    trigger:close()
    assert.equal(1, await(co))
  end)

  spec("is what <close> calls", function()
    local kept
    do
      local trigger <close> = vigil.trigger()
      kept = trigger
    end
    assert.is_true(kept:is_closed())
  end)

  spec("by the coroutine that waited, on waking", function()
    local trigger = vigil.trigger()
    local co = started(function()
      await(trigger)
      trigger:close()
    end)
    local other = started(await, trigger)
    trigger:fire()
    await(co)
    assert.equal(1, await(other)) -- it was told already
  end)
end)

describe("a trigger's end", function()
  local steps = {
    cancel = function(x) x.co:cancel() end,
    close = function(x) x.trigger:close() end,
    collect = function(x)
      x.trigger = nil
      collect()
    end,
    fire = function(x) x.trigger:fire() end,
  }
  for _, order in ipairs {
    "cancel close collect", "cancel collect", "close cancel collect", "close collect cancel",
    "collect cancel", "fire cancel close collect", "fire close cancel collect",
    "fire close collect cancel", "fire collect cancel", "fire collect", "cancel fire collect",
    "cancel fire close collect",
  } do
    for _, turns in ipairs { 0, 1 } do
      local how = turns == 0 and " at once" or " with turns in between"
      spec("is clean: " .. order .. how .. " (GC-07)", function()
        local x = { trigger = vigil.trigger() }
        x.co = started(function(trigger) pawait(trigger) end, x.trigger)
        for step in order:gmatch("%a+") do
          steps[step](x)
          for _ = 1, turns do sleep(0.001) end
        end
        sleep(0.001)
      end)
    end
  end

  spec("leaves no memory behind, however often (GC-07)", function()
    local function rounds(n)
      for i = 1, n do
        local trigger = vigil.trigger()
        local co = started(pawait, trigger)
        if i % 3 == 0 then co:cancel() elseif i % 3 == 1 then trigger:close() else trigger:fire() end
        suspend()
      end
      sleep(0.01)
      collect()
      sleep(0.01)
      collect()
      return core.bytes(), core.counts().handles
    end
    local bytes, handles = rounds(200)
    local bytes_after, handles_after = rounds(1000)
    assert.is_true(bytes_after - bytes < 4096)
    assert.equal(handles, handles_after)
  end)
end)

describe("lua_close with triggers in flight (TR-04)", function()
  local function closes(name, code)
    it(name, function()
      local status, out, err = helper.run_script([[
        local vigil = require "vigil"
        local spawn, suspend = vigil.spawn, vigil.suspend
        local trigger, never = vigil.trigger(), (vigil.future())
      ]] .. code)
      assert.equal("", err)
      assert.equal("", out)
      assert.equal(0, status)
    end)
  end

  closes("unused", "")
  closes("fired", "trigger:fire()")
  closes("awaited", "spawn(vigil.await, trigger) vigil.sleep(0.001)")
  closes("awaited and fired", "spawn(vigil.await, trigger) suspend() trigger:fire()")
  closes("in a select", "spawn(vigil.select, { never, trigger, trigger }) suspend()")
  closes("in await_all", "spawn(vigil.await_all, { never, trigger }) suspend()")
  closes("as a token", "spawn(vigil.await, never, trigger) suspend()")
  closes("closing", "spawn(vigil.pawait, trigger) suspend() trigger:close()")
  closes("from inside a coroutine", [[
    vigil.run(function()
      spawn(vigil.await, trigger)
      suspend()
      trigger:fire()
      os.exit(true, true)
    end)
  ]])
  closes("a finalizer fires it", [[
    setmetatable({}, { __gc = function() trigger:fire() end })
    spawn(vigil.await, trigger)
    suspend()
  ]])
end)
