-- Signals: DESIGN 2.5, ruling 24; SEMANTICS SI, EV-12, EV-17, GC-07;
-- FIELD-REPORTS R107.

local core = require "vigil.core"
local helper = require "spec.helper"
local vigil = require "vigil"

local spawn, sleep, suspend = vigil.spawn, vigil.sleep, vigil.suspend
local await, pawait = vigil.await, vigil.pawait

local pid = math.tointeger(io.open("/proc/self/stat"):read("n"))

local function spec(name, fn)
  it(name, helper.in_vigil(fn))
end

local function send(name, times)
  assert(os.execute(("for i in $(seq %d); do kill -%s %d; done"):format(times or 1, name, pid)))
end

-- Whether a signal's handler is someone's, by the kernel.
local function is_caught(number)
  for line in io.lines("/proc/self/status") do
    local mask = line:match("^SigCgt:%s*(%x+)")
    if mask then return tonumber(mask, 16) & (1 << (number - 1)) ~= 0 end
  end
end

local USR1, USR2 = 10, 12

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

describe("vigil.signal takes", function()
  spec("a name in any spelling, or a number", function()
    for _, name in ipairs { "USR1", "SIGUSR1", "usr1", "sigusr1", USR1 } do
      local signal <close> = vigil.signal(name)
      assert.equal("signal SIGUSR1", tostring(signal))
    end
    local signal <close> = vigil.signal(40)
    assert.matches("^signal SIGRTMIN%+%d+$", tostring(signal))
  end)

  spec("no name that is none: that is misuse, and raises", function()
    assert.error_matches(function() vigil.signal("NONE") end, "NONE")
    assert.error_matches(function() vigil.signal("") end, "#1")
    assert.error_matches(function() vigil.signal(("x"):rep(100)) end, "#1")
    assert.error_matches(function() vigil.signal() end, "#1")
    assert.error_matches(function() vigil.signal({}) end, "#1")
    assert.error_matches(function() vigil.signal(1.5) end, "#1")
  end)

  spec("no signal that cannot be caught", function()
    for _, which in ipairs { "KILL", "STOP", 0, -1, 65, 1000, 1 << 40 } do
      local signal, err = vigil.signal(which)
      assert.is_nil(signal)
      assert.equal("io", err.kind)
      assert.equal("EINVAL", err.code)
    end
    collect()
    sleep(0.001)
  end)
end)

describe("a signal", function()
  spec("wakes who waits, with its name and how often it came (SI-01)", function()
    local signal <close> = vigil.signal("USR1")
    local co = started(function() return await(signal) end)
    send("USR1")
    local name, count = await(co)
    assert.equal("SIGUSR1", name)
    assert.equal(1, count)
    local ok, err = pawait(signal, 0.01)
    assert.is_false(ok)
    assert.equal("timeout", err.kind)
    send("USR1")
    assert.equal("SIGUSR1", (await(signal)))
  end)

  spec("wakes all who wait, with one native handle (SI-02)", function()
    local before = core.counts().handles
    local one <close> = vigil.signal("USR1")
    local two <close> = vigil.signal("USR1")
    local waiting = {}
    for i = 1, 10 do
      waiting[i] = started(await, i % 2 == 0 and one or two)
    end
    assert.equal(before + 1, core.counts().handles)
    send("USR1")
    for _, co in ipairs(waiting) do
      local name, count = await(co)
      assert.equal("SIGUSR1", name)
      assert.equal(1, count)
    end
  end)

  spec("is counted while nobody waits (ruling 24)", function()
    local signal <close> = vigil.signal("USR1")
    send("USR1")
    sleep(0.001)
    send("USR1")
    sleep(0.001)
    send("USR1")
    sleep(0.001)
    local name, count = await(signal)
    assert.equal("SIGUSR1", name)
    assert.equal(3, count)
    assert.is_false((pawait(signal, 0)))
  end)

  spec("is counted for each object by itself", function()
    local one <close> = vigil.signal("USR1")
    local two <close> = vigil.signal("USR1")
    send("USR1")
    await(one)
    assert.equal("SIGUSR1", (await(two)))
    assert.is_false((pawait(one, 0)))
    local three <close> = vigil.signal("USR1") -- too late for that one
    assert.is_false((pawait(three, 0)))
  end)

  spec("of one number is no signal of another", function()
    local one <close> = vigil.signal("USR1")
    local two <close> = vigil.signal("USR2")
    send("USR2")
    local index, name = vigil.select { one, two }
    assert.equal(2, index)
    assert.equal("SIGUSR2", name)
  end)

  spec("is not lost with a waiter that is cancelled before it runs", function()
    local signal <close> = vigil.signal("USR1")
    local co = started(pawait, signal)
    send("USR1")
    while co.state == "suspended" do sleep(0) end
    co:cancel()
    pawait(co)
    assert.equal("SIGUSR1", (await(signal)))
  end)

  spec("goes with a token (SI-03)", function()
    local signal <close> = vigil.signal("USR1")
    local ok, err = pawait(signal, 0.01)
    assert.is_false(ok)
    assert.equal("timeout", err.kind)
    local token = vigil.timeout(0)
    sleep(0.001)
    ok, err = pawait(signal, token)
    assert.is_false(ok)
    assert.equal("timeout", err.kind)
    send("USR1")
    sleep(0.001)
    assert.equal("SIGUSR1", (await(signal, token))) -- a settled target wins
  end)

  spec("is a token itself, and an awaitable for await_any and select (EV-17)", function()
    local signal <close> = vigil.signal("USR1")
    local never = vigil.future()
    local co = started(pawait, never, signal)
    send("USR1")
    local ok, err = await(co)
    assert.is_false(ok)
    assert.equal("cancelled", err.kind)
    assert.equal(signal, err.token)
    send("USR1")
    assert.equal("SIGUSR1", (vigil.await_any_or_fail { never, signal }))
    send("USR1")
    local index, name = vigil.select { never, signal }
    assert.equal(2, index)
    assert.equal("SIGUSR1", name)
  end)

  spec("keeps the program going while it is waited for, and only then (SI-05)", function()
    local signal <close> = vigil.signal("USR1")
    assert.equal(0, core.counts().active)
    local co = started(await, signal)
    assert.equal(1, core.counts().active)
    send("USR1")
    await(co)
    assert.equal(0, core.counts().active)
  end)

  it("that is held and not waited for lets the run end (SI-05)", function()
    local signal = vigil.signal("USR1")
    vigil.run(function() end)
    signal:close()
  end)

  it("waits in the main chunk, where it may be the only event", function()
    local signal <close> = vigil.signal("USR1")
    os.execute(("(sleep 0.05; kill -USR1 %d) &"):format(pid))
    assert.equal("SIGUSR1", (await(signal)))
  end)

  spec("says what it is (EV-12)", function()
    local signal = vigil.signal("USR1")
    assert.equal("signal SIGUSR1", tostring(signal))
    send("USR1")
    sleep(0.001)
    assert.equal("signal SIGUSR1 (1 arrived)", tostring(signal))
    signal:close()
    assert.equal("signal SIGUSR1 (closed)", tostring(signal))
  end)
end)

describe("close()", function()
  spec("fails who waits, once and for good", function()
    local signal = vigil.signal("USR1")
    local one, two = started(pawait, signal), started(pawait, signal)
    signal:close()
    signal:close()
    assert.is_true(signal:is_closed())
    assert_closed(await(one))
    assert_closed(await(two))
    assert_closed(pawait(signal))
    local index, nothing, err = vigil.select { signal }
    assert.equal(1, index)
    assert.is_nil(nothing)
    assert.equal("closed", err.kind)
  end)

  spec("leaves other objects of the number armed", function()
    local one = vigil.signal("USR1")
    local two <close> = vigil.signal("USR1")
    one:close()
    assert.is_true(is_caught(USR1))
    send("USR1")
    assert.equal("SIGUSR1", (await(two)))
  end)

  spec("after it fired, before its waiter ran: the waiter has it", function()
    local signal = vigil.signal("USR1")
    local co = started(await, signal)
    send("USR1")
    while co.state == "suspended" do sleep(0) end
    signal:close()
    assert.equal("SIGUSR1", (await(co)))
  end)
end)

describe("dispositions:", function()
  spec("the handler is there from the first object to the last (SI-06)", function()
    assert.is_false(is_caught(USR2))
    local one, two = vigil.signal("USR2"), vigil.signal("USR2")
    assert.is_true(is_caught(USR2))
    one:close()
    assert.is_true(is_caught(USR2))
    two:close()
    assert.is_false(is_caught(USR2))
  end)

  spec("a dropped object is disarmed (SI-04)", function()
    vigil.signal("USR2")
    collect()
    assert.is_false(is_caught(USR2))
  end)

  spec("a new object right after the last one works", function()
    for _ = 1, 50 do
      local signal <close> = vigil.signal("USR2")
      send("USR2")
      assert.equal("SIGUSR2", (await(signal)))
    end
  end)

  local function script(name, code, expected, shell)
    it(name, function()
      local file = os.tmpname()
      local handle = assert(io.open(file, "w"))
      handle:write([[
        local vigil = require "vigil"
        local function kill(name)
          os.execute("kill -" .. name .. " $PPID")
        end
        io.stdout:setvbuf "no"
      ]] .. code)
      handle:close()
      local status, out = helper.run_script(([[
        local ok, how, status = os.execute(%q)
        print(how, status)
      ]]):format(("%s exec %s %s"):format(shell or "", os.getenv("LUA") or "lua5.4", file)))
      os.remove(file)
      assert.equal(0, status)
      assert.equal(expected, out)
    end)
  end

  script("SIGTERM kills again after close() (SI-06)", [[
    local signal = vigil.signal("TERM")
    kill "TERM"
    print((vigil.await(signal)))
    signal:close()
    kill "TERM"
    print "not reached"
  ]], "SIGTERM\nsignal\t15\n")

  script("SIGTERM kills again after the object was dropped (SI-04, SI-06)", [[
    do
      local signal = vigil.signal("TERM")
      kill "TERM"
      print((vigil.await(signal)))
    end
    collectgarbage() collectgarbage()
    kill "TERM"
    print "not reached"
  ]], "SIGTERM\nsignal\t15\n")

  script("SIGTERM kills while another signal is waited for (SI-06)", [[
    vigil.spawn(function()
      vigil.sleep(0.01)
      kill "TERM"
    end)
    vigil.await(vigil.signal("INT"))
    print "not reached"
  ]], "signal\t15\n")

  script("a signal that was ignored is ignored again (ruling 24)", [[
    kill "USR1"
    local signal = vigil.signal("USR1")
    kill "USR1"
    print((vigil.await(signal)))
    signal:close()
    kill "USR1"
    print "alive"
  ]], "SIGUSR1\nalive\nexit\t0\n", "trap '' USR1;")

  script("the state's end puts them back, too (ruling 24)", [[
    local signal = vigil.signal("USR1")
    vigil.spawn(vigil.await, signal)
    vigil.sleep(0.001)
    setmetatable({}, { __gc = function() end })
    os.exit(true, true)
  ]], "exit\t0\n")

  script("a signal wakes a program that does nothing else", [[
    os.execute("(sleep 0.05; kill -TERM $PPID) & sleep 0")
    local name, count = vigil.await(vigil.signal("TERM"))
    print(name, count)
  ]], "SIGTERM\t1\nexit\t0\n")
end)

describe("a burst", function()
  spec("is merged, and none is later than its wait", function()
    local signal <close> = vigil.signal("USR1")
    local total, rounds = 0, 0
    send("USR1", 50)
    while true do
      local ok, _, count = pawait(signal, 0.05)
      if not ok then break end
      total, rounds = total + count, rounds + 1
    end
    assert.is_true(total >= 1 and total <= 50)
    assert.is_true(rounds <= total)
  end)

  spec("during which the object is closed: it always closes (R107)", function()
    local rounds = helper.sanitized and 100 or 1000
    -- One process sends all the time; a guard takes what comes in between.
    local guard <close> = vigil.signal("USR1")
    local sender = io.popen(([[
      while kill -USR1 %d 2>/dev/null; do :; done & echo $!
      wait
    ]]):format(pid))
    local child = sender:read("n")
    local before = core.counts().handles
    for i = 1, rounds do
      local signal = vigil.signal("USR1")
      if i % 3 == 0 then pawait(signal, 1) end
      if i % 5 == 0 then suspend() end
      if i % 2 == 0 then signal:close() else signal = nil end -- luacheck: ignore
      if i % 100 == 0 then collect() end
    end
    os.execute("kill " .. child)
    sender:close()
    assert.equal("SIGUSR1", (await(guard)))
    collect()
    sleep(0.01)
    assert.equal(before, core.counts().handles)
  end)

  spec("during which the last object is closed, again and again (R107)", function()
    local rounds = helper.sanitized and 50 or 300
    local before = core.counts().handles
    for _ = 1, rounds do
      local signal = vigil.signal("USR1")
      -- 20 at once; all have been sent before the object closes
      os.execute(("for i in 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20; do kill -USR1 %d; done")
        :format(pid))
      assert.equal("SIGUSR1", (await(signal)))
      signal:close()
    end
    sleep(0.01)
    assert.equal(before, core.counts().handles)
  end)
end)

describe("a signal's end", function()
  local steps = {
    cancel = function(x) x.co:cancel() end,
    close = function(x) x.signal:close() end,
    collect = function(x)
      x.signal = nil
      collect()
    end,
    fire = function() send("USR1") end,
  }
  for _, order in ipairs {
    "cancel close collect", "cancel collect", "close cancel collect", "close collect cancel",
    "collect cancel", "fire cancel close collect", "fire close cancel", "fire close collect cancel",
    "fire collect cancel", "fire collect",
  } do
    for _, turns in ipairs { 0, 1 } do
      local how = turns == 0 and " at once" or " with turns in between"
      spec("is clean: " .. order .. how .. " (GC-07)", function()
        local guard <close> = vigil.signal("USR1") -- the test shall survive it
        local x = { signal = vigil.signal("USR1") }
        x.co = started(function(signal) pawait(signal) end, x.signal)
        for step in order:gmatch("%a+") do
          steps[step](x)
          for _ = 1, turns do sleep(0.001) end
        end
        sleep(0.001)
        assert.is_false(guard:is_closed())
      end)
    end
  end

  spec("leaves no memory behind, however often (GC-07)", function()
    local function rounds(n)
      for i = 1, n do
        local signal = vigil.signal("USR1")
        local co = started(pawait, signal)
        if i % 2 == 0 then co:cancel() else signal:close() end
        suspend()
      end
      collect()
      sleep(0.001)
      collect()
      return core.bytes()
    end
    local before = rounds(200)
    assert.is_true(rounds(1000) - before < 4096)
  end)
end)

describe("lua_close with signals in flight", function()
  local function closes(name, code)
    it(name, function()
      local status, out, err = helper.run_script([[
        local vigil = require "vigil"
        local spawn, suspend = vigil.spawn, vigil.suspend
        local signal, never = vigil.signal("USR1"), (vigil.future())
        local function kill() os.execute("kill -USR1 $PPID") end
      ]] .. code)
      assert.equal("", err)
      assert.equal("", out)
      assert.equal(0, status)
    end)
  end

  closes("unused", "")
  closes("awaited", "spawn(vigil.await, signal) vigil.sleep(0.001)")
  closes("in a select", "spawn(vigil.select, { never, signal, signal }) suspend()")
  closes("in await_all", "spawn(vigil.await_all, { never, signal }) suspend()")
  closes("as a token", "spawn(vigil.await, never, signal) suspend()")
  closes("arrived and not taken", "kill() vigil.sleep(0.001)")
  closes("arrived and not delivered", "spawn(vigil.await, signal) suspend() kill()")
  closes("closing", "spawn(vigil.pawait, signal) suspend() kill() signal:close()")
  closes("from inside a coroutine", [[
    vigil.run(function()
      spawn(vigil.await, signal)
      suspend()
      kill()
      os.exit(true, true)
    end)
  ]])
end)
