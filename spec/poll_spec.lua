-- Polls: DESIGN 2.5, ruling 23; SEMANTICS PL, EV-12, EV-17, GC-07;
-- FIELD-REPORTS R11, R83, R84, R85.  (What Lua does not reach is in
-- c/test_poll.c.)

local core = require "vigil.core"
local helper = require "spec.helper"
local vigil = require "vigil"

local spawn, sleep, suspend = vigil.spawn, vigil.sleep, vigil.suspend
local await, pawait, now = vigil.await, vigil.pawait, vigil.now

local function spec(name, fn)
  it(name, helper.in_vigil(fn))
end

-- A pipe as two Lua files: what is written to the second can be read from the
-- first.  Closing a file closes its descriptor, behind vigil's back.
local pipe_code = [[
  local function pipe()
    local name = os.tmpname()
    os.remove(name)
    assert(os.execute("mkfifo " .. name))
    local r, w = assert(io.open(name, "r+")), assert(io.open(name, "r+"))
    os.remove(name)
    r:setvbuf "no"
    w:setvbuf "no"
    return r, w
  end
]]
local pipe = load(pipe_code .. "return pipe")()

-- A pipe that takes no more.
local function fill(w)
  local blocking = vigil.poll(w, "w")
  while pawait(blocking, 0) do w:write(("x"):rep(4096)) end
  blocking:close()
end

local function descriptors()
  local count = 0
  for name in require "lfs".dir("/proc/self/fd") do
    if tonumber(name) then count = count + 1 end
  end
  return count
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

local function assert_fails(kind, code, ok, err)
  assert.is_false(ok)
  assert.is_true(vigil.is_error(err, kind), kind .. " expected, got " .. tostring(err))
  assert.equal(code, err.code)
end

describe("vigil.poll takes", function()
  spec("a number, a Lua file, or an object with fd()", function()
    local r, w = pipe()
    w:write("x")
    local poll = vigil.poll(r, "r")
    local number = math.tointeger(tostring(poll):match("descriptor (%d+)"))
    assert.equal("r", await(poll))
    assert.equal("r", await(vigil.poll(number, "r")))
    assert.equal("r", await(vigil.poll({ fd = function() return number end }, "r")))
    assert.equal("r", await(vigil.poll({ getfd = function() return number end }, "r")))
    r:close()
    w:close()
  end)

  spec("a stream of vigil's own, whose reads go on undisturbed (R83)", function()
    local a, b = assert(vigil.pipe.pair())
    local reader = started(function() return a:read("line") end)
    assert.equal("w", await(vigil.poll(a, "w")))
    b:write("one\n")
    assert.equal("one", await(reader))
    local poll = vigil.poll(b, "r")
    a:write("two\n")
    assert.equal("r", await(poll))
    assert.equal("two", b:read("line"))
    poll:close()
    a:close()
    b:close()
  end)

  spec("letters of rwdp in any order", function()
    local r, w = pipe()
    assert.equal("w", await(vigil.poll(w, "w")))
    assert.equal("w", await(vigil.poll(w, "wr")))
    w:write("x")
    assert.equal("rw", await(vigil.poll(w, "wr")))
    assert.equal("rw", await(vigil.poll(w, "rwdp")))
    r:close()
    w:close()
  end)

  spec("nothing else: that is misuse, and raises", function()
    local r, w = pipe()
    assert.error_matches(function() vigil.poll(r, "") end, "mask")
    assert.error_matches(function() vigil.poll(r, "rx") end, "rx")
    assert.error_matches(function() vigil.poll(r) end, "#2")
    assert.error_matches(function() vigil.poll("0", "r") end, "#1")
    assert.error_matches(function() vigil.poll({}, "r") end, "fd%(%)")
    assert.error_matches(function() vigil.poll(nil, "r") end, "#1")
    assert.error_matches(function() vigil.poll(1.5, "r") end, "#1")
    r:close()
    w:close()
  end)

  spec("no descriptor that is not open", function()
    local r, w = pipe()
    r:close()
    for _, fd in ipairs { -1, 1000000, 1 << 40, r, { fd = function() end } } do
      local poll, err = vigil.poll(fd, "r")
      assert.is_nil(poll)
      assert_fails("io", "EBADF", false, err)
    end
    w:close()
  end)

  spec("no regular file: it is always ready, and epoll refuses it", function()
    local file = assert(io.open("/proc/self/exe"))
    local poll, err = vigil.poll(file, "r")
    assert.is_nil(poll)
    assert_fails("io", "EPERM", false, err)
    file:close()
  end)

  spec("the file as it is: its mode does not change", function()
    local out = io.popen("sleep 0.05; echo done")
    await(vigil.poll(out, "r"))
    assert.equal("done", out:read()) -- a non-blocking file might give nil
    out:close()
  end)
end)

describe("a poll", function()
  spec("wakes each for its own mask only (PL-01, R83)", function()
    local r, w = pipe()
    fill(w)
    local log = {}
    local function wait_for(mask)
      local result = await(vigil.poll(w, mask))
      log[#log + 1] = result
    end
    local writer, reader = started(wait_for, "w"), started(wait_for, "r")
    await(reader)
    assert.same({ "r" }, log)
    assert.equal("suspended", writer.state)
    r:read(65536)
    await(writer)
    assert.same({ "r", "w" }, log)
    r:close()
    w:close()
  end)

  spec("wakes all who wait on it, and on others of the descriptor", function()
    local r, w = pipe()
    local poll, waiting = vigil.poll(r, "r"), {}
    for i = 1, 10 do
      waiting[i] = started(function()
        return await(i % 2 == 0 and poll or vigil.poll(r, "rw"))
      end)
    end
    -- the ones with "rw" are ready already
    for i = 1, 10, 2 do assert.equal("w", await(waiting[i])) end
    w:write("x")
    for i = 2, 10, 2 do assert.equal("r", await(waiting[i])) end
    r:close()
    w:close()
  end)

  spec("is about now: what is not taken is reported again", function()
    local r, w = pipe()
    local poll = vigil.poll(r, "r")
    w:write("xy")
    for _ = 1, 5 do assert.equal("r", await(poll)) end
    assert.equal("xy", r:read(2))
    assert_fails("timeout", "ETIMEDOUT", pawait(poll, 0.01))
    w:write("z")
    assert.equal("r", await(poll))
    r:close()
    w:close()
  end)

  spec("shares one native handle per descriptor (PL-02)", function()
    local r, w = pipe()
    local before, polls = core.counts().handles, {}
    for i = 1, 10 do
      polls[i] = vigil.poll(r, i % 2 == 0 and "r" or "p")
      spawn(pawait, polls[i])
    end
    suspend()
    -- the descriptor's, and the one that all polls have together
    assert.equal(before + 2, core.counts().handles)
    for _, poll in ipairs(polls) do poll:close() end
    r:close()
    w:close()
  end)

  spec("opens a descriptor while somebody waits, and only then", function()
    local r, w = pipe()
    local before = descriptors()
    local poll = vigil.poll(r, "r")
    sleep(0.01)
    assert.equal(before, descriptors())
    local co = started(await, poll)
    assert.equal(before + 1, descriptors())
    w:write("x")
    await(co)
    sleep(0.001)
    assert.equal(before, descriptors())
    r:close()
    w:close()
  end)

  spec("keeps nothing armed while nobody waits", function()
    local r, w = pipe()
    local poll = vigil.poll(r, "r")
    w:write("x")
    sleep(0.01)
    local counts = core.counts()
    assert.equal(0, counts.active)
    assert.equal(0, counts.timers)
    assert.equal("r", await(poll))
    sleep(0.001)
    assert.equal(0, core.counts().timers)
    r:close()
    w:close()
  end)

  spec("keeps the object that the descriptor is of", function()
    local r, w = pipe()
    local poll = vigil.poll(r, "r")
    r = nil -- luacheck: ignore
    collect()
    w:write("x")
    assert.equal("r", await(poll))
    w:close()
  end)

  spec("says what it is (EV-12)", function()
    local r, w = pipe()
    local poll = vigil.poll(r, "dr")
    assert.matches("^poll %(descriptor %d+, rd%)$", tostring(poll))
    poll:close()
    assert.matches("^poll %(descriptor %d+, rd, closed%)$", tostring(poll))
    r:close()
    w:close()
  end)

  spec("goes with select, await_any, and as a token (EV-17)", function()
    local r, w = pipe()
    local poll, never = vigil.poll(r, "r"), vigil.future()
    w:write("x")
    local index, mask = vigil.select { never, poll }
    assert.equal(2, index)
    assert.equal("r", mask)
    assert.equal("r", (vigil.await_any_or_fail { never, poll }))
    local _, err = pawait(never, poll)
    assert.equal("cancelled", err.kind)
    assert.equal(poll, err.token)
    r:close()
    w:close()
  end)

  spec("in two cases of one select is one event twice", function()
    local r, w = pipe()
    local poll = vigil.poll(r, "r")
    local co = started(vigil.select, { poll, poll, vigil.poll(r, "r") })
    w:write("x")
    assert.is_number(await(co))
    r:close()
    w:close()
  end)

  spec("hidden keeps nothing alive (DL-08)", function()
    local r, w = pipe()
    local poll = vigil.poll(r, "r"):hide()
    local co = spawn(function() await(poll) end)
    suspend()
    assert.equal(0, core.counts().active)
    co:cancel()
    r:close()
    w:close()
  end)

  it("waits in the main chunk, where it may be the only event", function()
    local r, w = pipe()
    os.execute("(sleep 0.05; echo x) >/proc/" .. io.open("/proc/self/stat"):read("n")
      .. "/fd/" .. tostring(vigil.poll(w, "w")):match("%d+") .. " &")
    assert.equal("r", await(vigil.poll(r, "r")))
    r:close()
    w:close()
    collect()
  end)
end)

describe("the far end", function()
  spec("that has gone reads as ready, and d says why", function()
    local a, b = assert(vigil.pipe.pair())
    local poll = vigil.poll(a:fd(), "rd")
    b:close()
    assert.equal("rd", await(poll))
    poll:close()
    a:close()
  end)

  spec("that has gone wakes who waits to write (R85)", function()
    local name = os.tmpname()
    os.remove(name)
    assert(os.execute("mkfifo " .. name))
    local r = assert(io.open(name, "r+"))
    local w = assert(io.open(name, "w"))
    os.remove(name)
    w:setvbuf "no"
    fill(w)
    local co = started(await, vigil.poll(w, "w"))
    r:close()
    assert.equal("w", await(co)) -- writing would say EPIPE
    w:close()
  end)

  spec("that is half closed wakes nobody who only writes, and costs nothing (R85)", function()
    local a, b = assert(vigil.pipe.pair())
    a:setoption("sndbuf", 4096)
    local block = ("x"):rep(65536)
    local writing = started(function() return a:write(block, 0.1) end)
    await(writing)
    local co = started(await, vigil.poll(a:fd(), "w"))
    b:shutdown()
    local before = os.clock()
    sleep(0.3)
    assert.is_true(os.clock() - before < 0.05)
    assert.equal("suspended", co.state)
    assert.matches("r", await(vigil.poll(a:fd(), "r")))
    co:cancel()
    a:abort()
    b:abort()
  end)
end)

describe("close()", function()
  spec("fails who waits, once and for good", function()
    local r, w = pipe()
    local poll = vigil.poll(r, "r")
    local one, two = started(pawait, poll), started(pawait, poll)
    poll:close()
    poll:close()
    assert.is_true(poll:is_closed())
    assert_fails("closed", "ECLOSED", await(one))
    assert_fails("closed", "ECLOSED", await(two))
    assert_fails("closed", "ECLOSED", pawait(poll))
    local index, nothing, err = vigil.select { poll }
    assert.equal(1, index)
    assert.is_nil(nothing)
    assert.equal("closed", err.kind)
    r:close()
    w:close()
  end)

  spec("leaves the others of the descriptor alone", function()
    local r, w = pipe()
    local one, two = vigil.poll(r, "r"), vigil.poll(r, "r")
    local a, b = started(pawait, one), started(pawait, two)
    one:close()
    assert_fails("closed", "ECLOSED", await(a))
    w:write("x")
    local ok, mask = await(b)
    assert.is_true(ok)
    assert.equal("r", mask)
    r:close()
    w:close()
  end)

  spec("after it fired, before its waiter ran: the waiter has its mask", function()
    local r, w = pipe()
    local poll = vigil.poll(r, "r")
    local co = started(await, poll)
    w:write("x")
    while co.state == "suspended" do sleep(0) end
    poll:close()
    assert.equal("r", await(co))
    r:close()
    w:close()
  end)

  spec("is what <close> calls", function()
    local r, w = pipe()
    local kept
    do
      local poll <close> = vigil.poll(r, "r")
      kept = poll
    end
    assert.is_true(kept:is_closed())
    r:close()
    w:close()
  end)
end)

describe("a poll's end", function()
  -- Each of these lets go in an order of its own; in_vigil looks for leaks.
  local steps = {
    cancel = function(x) x.co:cancel() end,
    close = function(x) x.poll:close() end,
    collect = function(x)
      x.poll = nil
      collect()
    end,
    shut = function(x) x.r:close() end,
    fire = function(x) x.w:write("x") end,
  }
  local orders = {
    "cancel close collect shut", "cancel collect shut", "close cancel collect shut",
    "close collect shut cancel", "collect cancel shut", "shut close cancel collect",
    "shut cancel close collect", "shut collect cancel", "fire cancel close collect shut",
    "fire close collect cancel shut", "fire shut cancel collect", "cancel shut fire collect",
    "collect fire shut", "collect fire cancel shut",
  }

  for _, order in ipairs(orders) do
    for _, turns in ipairs { 0, 1 } do
      local how = turns == 0 and " at once" or " with turns in between"
      spec("is clean: " .. order .. how .. " (GC-07)", function()
        local x = {}
        x.r, x.w = pipe()
        x.poll = vigil.poll(x.r, "r")
        x.co = started(function(poll) pawait(poll) end, x.poll)
        for step in order:gmatch("%a+") do
          steps[step](x)
          for _ = 1, turns do sleep(0.001) end
        end
        x.w:close()
      end)
    end
  end

  spec("may come by collection while nobody waits (GC-07)", function()
    local r, w = pipe()
    local before = descriptors()
    for _ = 1, 200 do vigil.poll(r, "rw") end
    collect()
    sleep(0.001)
    assert.equal(before, descriptors())
    r:close()
    w:close()
  end)

  spec("leaves no memory behind, however often (GC-07)", function()
    local r, w = pipe()
    local function rounds(n)
      for i = 1, n do
        local poll = vigil.poll(r, "r")
        local co = started(pawait, poll)
        if i % 2 == 0 then co:cancel() else poll:close() end
        suspend()
      end
      collect()
      sleep(0.001)
      collect()
      return core.bytes()
    end
    local before = rounds(200)
    assert.is_true(rounds(1000) - before < 4096)
    r:close()
    w:close()
  end)
end)

describe("a descriptor closed behind a waiting poll (ruling 23)", function()
  spec("fails the wait with EBADF within about a second (R84)", function()
    local r, w = pipe()
    local co = started(pawait, vigil.poll(r, "r"))
    sleep(0.01)
    r:close()
    local before, clock = now(), os.clock()
    assert_fails("io", "EBADF", await(co))
    assert.is_true(now() - before < 1.5)
    assert.is_true(os.clock() - clock < 0.05)
    w:close()
  end)

  spec("is found before the loop has even turned", function()
    local r, w = pipe()
    local co = started(pawait, vigil.poll(r, "r"))
    r:close()
    local poll, err = vigil.poll(r, "r")
    assert.is_nil(poll)
    assert.equal("EBADF", err.code)
    assert_fails("io", "EBADF", await(co))
    w:close()
  end)

  spec("is found by close() of another poll of it", function()
    local r, w = pipe()
    local other = vigil.poll(r, "r")
    local co = started(pawait, vigil.poll(r, "r"))
    r:close()
    local before = now()
    other:close()
    assert_fails("io", "EBADF", await(co))
    assert.is_true(now() - before < 0.5)
    w:close()
  end)

  spec("is found by the next wait", function()
    local r, w = pipe()
    local poll = vigil.poll(r, "r")
    local co = started(pawait, vigil.poll(r, "r"))
    r:close()
    assert_fails("io", "EBADF", pawait(poll))
    assert_fails("io", "EBADF", await(co))
    assert_fails("io", "EBADF", pawait(poll))
    assert.is_true(poll:is_closed())
    local index, _, err = vigil.select { poll }
    assert.equal(1, index)
    assert.equal("EBADF", err.code)
    w:close()
  end)

  spec("and reused: the wait on the new file works, the old one fails (R11, R84)", function()
    local r, w = pipe()
    local number = tostring(vigil.poll(r, "r")):match("%d+")
    local old = vigil.poll(r, "r")
    local co = started(pawait, old)
    sleep(0.001)
    r:close()
    local r2, w2 = pipe()
    local new = vigil.poll(r2, "r")
    assert.equal(number, tostring(new):match("%d+"))
    assert_fails("io", "EBADF", await(co))
    old, co = nil, nil -- luacheck: ignore
    local waiting = started(await, new)
    collect()
    sleep(0.001)
    assert.equal("suspended", waiting.state)
    w2:write("x")
    assert.equal("r", await(waiting))
    for _, file in ipairs { w, r2, w2 } do file:close() end
  end)

  spec("with an idle poll, reused, collected later (R11)", function()
    local r, w = pipe()
    local old = vigil.poll(r, "r")
    w:write("x")
    await(old)
    r:close()
    local r2, w2 = pipe()
    local waiting = started(await, vigil.poll(r2, "r"))
    sleep(0.001)
    old = nil -- luacheck: ignore
    collect()
    sleep(0.001)
    w2:write("x")
    assert.equal("r", await(waiting))
    for _, file in ipairs { w, r2, w2 } do file:close() end
  end)

  spec("and open elsewhere: nothing spins, though there is data (R85)", function()
    local r, w = pipe()
    local co = started(pawait, vigil.poll(r, "r"))
    sleep(0.001)
    local child = io.popen("exec sleep 2") -- inherits the file
    r:close()
    w:write("x")
    local clock = os.clock()
    assert_fails("io", "EBADF", await(co))
    sleep(1)
    assert.is_true(os.clock() - clock < 0.05)
    child:close()
    w:close()
  end)

  spec("and reused by 100 others wakes nobody wrongly (R84)", function()
    local files, woken = {}, 0
    local r, w = pipe()
    local co = started(pawait, vigil.poll(r, "r"))
    sleep(0.001)
    r:close()
    for _ = 1, 50 do
      local r2, w2 = pipe()
      files[#files + 1], files[#files + 2] = r2, w2
      spawn(function()
        if pawait(vigil.poll(r2, "r"), 0.2) then woken = woken + 1 end
      end)
    end
    assert_fails("io", "EBADF", await(co))
    sleep(0.3)
    assert.equal(0, woken)
    w:close()
    for _, file in ipairs(files) do file:close() end
  end)

  spec("gives the file up once nobody waits: its peer sees the end", function()
    local a, b = assert(vigil.pipe.pair())
    local poll = vigil.poll(a:fd(), "r")
    b:write("x")
    assert.equal("r", await(poll))
    a:close()
    assert.equal("x", (b:read(1, 1) or "x"))
    assert.is_nil((b:read("some", 1)))
    b:close()
    poll:close()
  end)
end)

describe("lua_close with polls in flight", function()
  local function closes(name, code)
    it(name, function()
      local status, out, err = helper.run_script([[
        local vigil = require "vigil"
        local spawn, suspend = vigil.spawn, vigil.suspend
      ]] .. pipe_code .. [[
        local r, w = pipe()
        local poll, never = vigil.poll(r, "r"), (vigil.future())
      ]] .. code)
      assert.equal("", err)
      assert.equal("", out)
      assert.equal(0, status)
    end)
  end

  closes("unused", "")
  closes("awaited", "spawn(vigil.await, poll) vigil.sleep(0.001)")
  closes("in a select", "spawn(vigil.select, { never, poll, poll }) suspend()")
  closes("in await_all", "spawn(vigil.await_all, { never, poll }) suspend()")
  closes("in await_any", "spawn(vigil.await_any_of, 1, { never, poll }) suspend()")
  closes("as a token", "spawn(vigil.await, never, poll) suspend()")
  closes("fired and not yet run", [[
    spawn(vigil.await, poll)
    vigil.sleep(0.001)
    w:write("x")
    vigil.run(function() vigil.sleep(0.01) os.exit(true, true) end)
  ]])
  closes("closing", "spawn(vigil.pawait, poll) suspend() poll:close()")
  closes("on a descriptor that has gone", "spawn(vigil.await, poll) suspend() r:close()")
  closes("on one that is something else now", [[
    spawn(vigil.await, poll) suspend() r:close() r = pipe()
  ]])
  closes("from inside a coroutine", [[
    vigil.run(function()
      spawn(vigil.await, poll)
      spawn(vigil.await, vigil.poll(w, "w"))
      suspend()
      os.exit(true, true)
    end)
  ]])
end)
