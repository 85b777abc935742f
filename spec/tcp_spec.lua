-- TCP: connecting by address and by name, what the network does to a
-- connection, options, errors.  FIELD-REPORTS R08, R12, R73, R74, R76, R77,
-- R79, R82, R84, R85, R89, R92, R93, R127; SEMANTICS IO-16, DN-01 to DN-03.

local core = require "vigil.core"
local helper = require "spec.helper"
local vigil = require "vigil"

local spawn, sleep, suspend = vigil.spawn, vigil.sleep, vigil.suspend
local await, pawait = vigil.await, vigil.pawait
local tcp = vigil.tcp

local function spec(name, fn)
  it(name, helper.in_vigil(fn))
end

local function started(fn, ...)
  local co = spawn(fn, ...)
  suspend()
  return co
end

local BIG = ("0123456789abcdef"):rep(327680) -- 5 MiB

-- A server on a free port, and its port.
local function listen(options)
  local server = assert(tcp.listen("127.0.0.1", 0, options))
  return server, select(2, server:sockname())
end

-- A port that nobody listens on.
local function free_port()
  local server, port = listen()
  server:close()
  return port
end

-- Both ends of a connection.
local function connection(options)
  local server, port = listen(options)
  local client = assert(tcp.connect("127.0.0.1", port))
  local accepted = assert(server:accept())
  server:close()
  return client, accepted
end

local function connection_spec(name, fn)
  spec(name, function()
    local client, accepted = connection()
    local _ <close> = client
    local _ <close> = accepted
    fn(client, accepted)
  end)
end

local function assert_err(code, kind, value, err)
  assert.is_nil(value)
  assert.is_true(vigil.is_error(err), tostring(err))
  assert.equal(code, err.code)
  assert.equal(kind, err.kind)
end

describe("connect", function()
  connection_spec("gives a handle that reads and writes", function(a, b)
    a:write("there")
    assert.equal("there", b:read())
    b:write("and back")
    assert.equal("and back", a:read())
  end)

  connection_spec("both ends know both names", function(a, b)
    local host, port = a:sockname()
    assert.equal("127.0.0.1", host)
    local peer_host, peer_port = b:peername()
    assert.equal(host, peer_host)
    assert.equal(port, peer_port)
    assert.same({ a:peername() }, { b:sockname() })
    assert.is_truthy(tostring(a):find("^tcp 127%.0%.0%.1:%d+ %(open%)$"))
  end)

  spec("refused: at once, with the address (R74)", function()
    local port = free_port()
    local conn, err = tcp.connect("127.0.0.1", port)
    assert_err("ECONNREFUSED", "io", conn, err)
    assert.equal(("ECONNREFUSED: connection refused (connect 127.0.0.1:%d)")
      :format(port), tostring(err))
  end)

  spec("unreachable: says so (R74)", function()
    -- No route: a multicast address takes no stream.
    local conn, err = tcp.connect("224.0.0.1", 80, 1)
    assert.is_nil(conn)
    assert.is_truthy(err.code == "ENETUNREACH" or err.code == "EHOSTUNREACH"
      or err.code == "ETIMEDOUT", tostring(err))
  end)

  spec("gives up when its time is up, and closes the socket", function()
    -- Nobody answers: a full backlog does not.
    local server, port = listen { backlog = 1 }
    local kept = {}
    local conn, err
    for _ = 1, 10 do
      conn, err = tcp.connect("127.0.0.1", port, 0.02)
      if not conn then break end
      kept[#kept + 1] = conn
    end
    assert_err("ETIMEDOUT", "timeout", conn, err)
    for _, each in ipairs(kept) do each:close() end
    server:close()
  end)

  spec("with a token that had fired does nothing", function()
    local server, port = listen()
    local token = vigil.timeout(0)
    sleep(0.001)
    assert_err("ETIMEDOUT", "timeout", tcp.connect("127.0.0.1", port, token))
    assert_err("ETIMEDOUT", "timeout",
      tcp.connect("127.0.0.1", port, { token = token }))
    server:close()
  end)

  spec("cancelled: raises, and closes the socket", function()
    local server, port = listen()
    local connecting = started(tcp.connect, "127.0.0.1", port)
    connecting:cancel()
    assert.is_true(vigil.is_error(select(2, pawait(connecting)), "cancelled"))
    server:close()
  end)

  spec("races with its time: a handle or ETIMEDOUT (R12)", function()
    local server, port = listen()
    local serving = spawn(function()
      for conn in server do conn:close() end
    end)
    for i = 1, helper.collecting and 20 or 300 do
      local conn, err = tcp.connect("127.0.0.1", port, (i % 8) / 40000)
      if conn then
        conn:close()
      else
        assert.equal("ETIMEDOUT", err.code)
      end
    end
    server:close()
    await(serving)
  end)

  spec("checks its arguments by name", function()
    for _, args in ipairs { { nil, 80 }, { "127.0.0.1" },
      { "127.0.0.1", "http" }, { "127.0.0.1", 65536 }, { "127.0.0.1", -1 },
      { "127.0.0.1", 80, { colour = 1 } }, { "127.0.0.1", 80, true },
      { "127.0.0.1", 80, { local_host = "here" } } } do
      local ok, err = pcall(tcp.connect, args[1], args[2], args[3])
      assert.is_false(ok)
      assert.is_truthy(err:find("bad argument", 1, true), err)
    end
  end)

  spec("takes options", function()
    local server, port = listen { nodelay = true, keepalive = 30 }
    local a = assert(tcp.connect("127.0.0.1", port,
      { nodelay = true, keepalive = true, token = 5 }))
    local b = assert(server:accept())
    for _, each in ipairs { a, b } do
      assert.is_true(each:getoption("nodelay"))
      assert.is_true(each:getoption("keepalive"))
      each:close()
    end
    server:close()
  end)

  spec("from an address in use fails (R82)", function()
    local server, port = listen()
    local other, taken = listen()
    assert_err("EADDRINUSE", "io", tcp.connect("127.0.0.1", port,
      { local_host = "127.0.0.1", local_port = taken }))
    other:close()
    local conn = assert(tcp.connect("127.0.0.1", port,
      { local_host = "127.0.0.1" }))
    conn:close()
    server:close()
  end)

  it("works over IPv6, and prints its addresses", function()
    local server
    vigil.run(function() server = tcp.listen("::1", 0) end)
    if not server then return pending("no IPv6 here") end
    helper.in_vigil(function()
      local _, port = server:sockname()
      local conn = assert(tcp.connect("::1", port))
      assert.equal("::1", (conn:peername()))
      local _, err = tcp.connect("::1", free_port())
      if err.code == "ECONNREFUSED" then
        assert.is_truthy(tostring(err):find("connect [::1]:", 1, true))
      end
      conn:close()
      server:close()
    end)()
  end)
end)

describe("connect by name", function()
  spec("tries the addresses in order (5.32)", function()
    local server, port = listen()
    local conn = assert(tcp.connect("localhost", port))
    assert.equal(port, select(2, conn:peername()))
    conn:close()
    server:close()
  end)

  local function with_addresses(addresses, fn)
    local resolve = core.resolve
    core.resolve = function() return addresses end
    local ok, err = pcall(fn)
    core.resolve = resolve
    if not ok then error(err, 0) end
  end

  spec("goes on after one that fails, quickly (R89)", function()
    local server, port = listen()
    with_addresses({ "127.0.0.2", "::1", "127.0.0.1" }, function()
      local other = assert(tcp.connect("some.name", port))
      assert.equal("127.0.0.1", (other:peername()))
      other:close()
    end)
    server:close()
  end)

  spec("lists every failure when all fail (R89)", function()
    local port = free_port()
    with_addresses({ "127.0.0.1", "127.0.0.2" }, function()
      local conn, err = tcp.connect("some.name", port)
      assert_err("ECONNREFUSED", "io", conn, err)
      assert.equal(2, #err.errors)
      assert.equal("ECONNREFUSED", err.errors[2].code)
      assert.is_truthy(tostring(err):find("127.0.0.2:" .. port, 1, true))
    end)
    with_addresses({ "127.0.0.1" }, function()
      local _, err = tcp.connect("some.name", port)
      assert.equal("ECONNREFUSED", err.code)
      assert.is_nil(err.errors)
    end)
  end)

  spec("that cannot exist: kind dns, at once (R92, DN-02)", function()
    local conn, err = tcp.connect("wrong.invalid", 80)
    assert.is_nil(conn)
    assert.equal("dns", err.kind)
    assert.is_truthy(err.code:find("^EAI_"), err.code)
    assert.is_truthy(tostring(err):find("wrong.invalid", 1, true))
  end)

  spec("given up at once, the late answer thrown away (R92, DN-03)", function()
    for i = 1, helper.collecting and 10 or 200 do
      local found, err = core.resolve("localhost", i % 4 / 20000)
      if not found then assert.equal("timeout", err.kind) end
    end
    local conn, err = tcp.connect("wrong.invalid", 80, 0.001)
    assert.is_nil(conn)
    assert.is_truthy(err.kind == "timeout" or err.kind == "dns")
    local lookup = started(core.resolve, "localhost")
    lookup:cancel()
    assert.is_true(vigil.is_error(select(2, pawait(lookup)), "cancelled"))
  end)

  spec("lets the others run (R93, DN-01)", function()
    local ticks = 0
    local ticker = spawn(function()
      while true do
        suspend()
        ticks = ticks + 1
      end
    end)
    local lookups = {}
    for i = 1, 8 do lookups[i] = spawn(core.resolve, "localhost") end
    for i = 1, 8 do assert.is_true(#await(lookups[i]) > 0) end
    assert.is_true(ticks > 8)
    ticker:cancel()
    pawait(ticker)
  end)

  it("under way when the state closes: quiet (R01)", function()
    local status, out, err = helper.run_script([[
      local vigil = require "vigil"
      vigil.run(function()
        for i = 1, 20 do
          vigil.spawn(vigil.tcp.connect, "name" .. i .. ".invalid", 80)
        end
        vigil.suspend()
        os.exit(7, true)
      end)
    ]])
    assert.equal(7, status, err)
    assert.equal("", out .. err)
  end)
end)

describe("a connection", function()
  connection_spec("half closed still carries the answer (R76)", function(a, b)
    a:write("request")
    a:shutdown()
    assert.equal("request", b:read("all"))
    local answering = spawn(function()
      assert(b:write(BIG))
      b:close()
    end)
    assert.equal(BIG, a:read("all"))
    assert_err("EPIPE", "io", a:write("late"))
    await(answering)
  end)

  connection_spec("closed by the peer before we first read (R76)",
    function(a, b)
      b:write("bye")
      b:close()
      sleep(0.005)
      assert.equal("bye", a:read())
      assert.is_nil(a:read())
    end)

  connection_spec("reset: reading fails, and stays failed (R72)",
    function(a, b)
      local reader = started(a.read, a)
      b:abort()
      local value, err = await(reader)
      assert_err("ECONNRESET", "io", value, err)
      assert.is_truthy(tostring(err):find("(read 127.0.0.1:", 1, true))
      assert_err("ECONNRESET", "io", a:read("line"))
      assert_err("ECONNRESET", "io", a:read("all"))
    end)

  connection_spec("reset: bytes that came before are read first",
    function(a, b)
      b:write("before")
      assert.equal("b", a:read(1))
      b:abort()
      sleep(0.005)
      assert.equal("ef", a:read(2))
      assert_err("ECONNRESET", "io", a:read(10))
      assert.equal("ore", a:read())
      assert_err("ECONNRESET", "io", a:read())
    end)

  connection_spec("reset while a write waits (R77)", function(a, b)
    local writer = started(a.write, a, BIG .. BIG)
    b:abort()
    local ok, err = await(writer)
    assert.is_nil(ok)
    assert.is_truthy(err.code == "EPIPE" or err.code == "ECONNRESET")
    assert.is_true(err.written < 2 * #BIG)
    assert.is_nil((a:write("x")))
    assert.is_nil((a:shutdown()))
  end)

  connection_spec("to a peer that is gone: no SIGPIPE (R77, R79)",
    function(a, b)
      b:close()
      sleep(0.002)
      local failures = 0
      for _ = 1, 100 do
        local ok, err = a:write("x")
        if not ok then
          failures = failures + 1
          assert.is_truthy(err.code == "EPIPE" or err.code == "ECONNRESET")
        end
        sleep(0)
      end
      assert.is_true(failures >= 98)
    end)

  connection_spec("still knows its peer afterwards", function(a, b)
    local host, port = a:peername()
    b:abort()
    a:read()
    assert.same({ host, port }, { a:peername() })
  end)

  spec("closed by us wakes its reader and an acceptor elsewhere (R84)",
    function()
      local a, b = connection()
      local server, port = listen()
      local reader = started(a.read, a)
      local acceptor = started(server.accept, server)
      spawn(function()
        a:close()
        server:close()
      end)
      suspend()
      suspend()
      assert.equal("completed", reader.state)
      assert.equal("completed", acceptor.state)
      assert_err("ECLOSED", "closed", await(reader))
      assert_err("ECLOSED", "closed", await(acceptor))
      -- the numbers are used again; nobody is woken by them
      local again = {}
      for i = 1, 50 do again[i] = assert(tcp.listen("127.0.0.1", 0)) end
      sleep(0.002)
      for i = 1, 50 do again[i]:close() end
      assert_err("ECONNREFUSED", "io", tcp.connect("127.0.0.1", port))
      b:close()
    end)

  connection_spec("with a FIN while we only write costs no CPU (R85)",
    function(a, b)
      b:shutdown()
      local writer = started(a.write, a, BIG .. BIG)
      local before = os.clock()
      sleep(0.1)
      assert.is_true(os.clock() - before < 0.05)
      assert.is_nil(a:read())
      a:abort()
      await(writer)
    end)

  connection_spec("full of unread input costs no CPU", function(a, b)
    local writer = started(a.write, a, BIG .. BIG)
    assert.equal("0", b:read(1))
    sleep(0.01)
    local before = os.clock()
    sleep(0.1)
    assert.is_true(os.clock() - before < 0.05)
    assert.equal("suspended", writer.state)
    b:abort()
    await(writer)
  end)

  connection_spec("idle costs no CPU", function(a, b)
    local reader = started(a.read, a)
    b:write("x")
    await(reader)
    reader = started(a.read, a)
    local before = os.clock()
    sleep(0.1)
    assert.is_true(os.clock() - before < 0.02)
    b:close()
    await(reader)
  end)

  connection_spec("options can be set and read back (R79)", function(a)
    for name, values in pairs {
      nodelay = { true, false }, keepalive = { true, false },
    } do
      for _, value in ipairs(values) do
        assert.is_true(a:setoption(name, value))
        assert.equal(value, a:getoption(name))
      end
    end
    assert.is_true(a:setoption("keepalive", 10))
    assert.is_true(a:setoption("user_timeout", 2.5))
    assert.equal(2.5, a:getoption("user_timeout"))
    assert.is_true(a:setoption("rcvbuf", 65536))
    assert.is_true(a:getoption("rcvbuf") >= 65536)
    assert.has_error(function() a:setoption("nodelay", 1) end)
    assert.has_error(function() a:setoption("keepalive", "often") end)
  end)

  it("tells a time limit of ours from the kernel's (R73)", function()
    -- Both are ETIMEDOUT; the kind says whose.  The kernel's is made up.
    local ours = select(2, vigil.pawait(vigil.timeout(0)))
    assert.equal("timeout", ours.kind)
    assert.equal("ETIMEDOUT", ours.code)
  end)

  spec("many, one after the other, leave nothing (R08, R127)", function()
    local server, port = listen()
    local serving = spawn(server.serve, server, function(conn)
      while true do
        local line = conn:read("line", 5)
        if not line or line == "quit" then return end
        conn:write({ line, "\n" })
      end
    end)
    local rounds = helper.collecting and 10 or 300
    local function exchange(n)
      for i = 1, n do
        local conn = assert(tcp.connect("127.0.0.1", port))
        conn:write("hello\n")
        assert.equal("hello", conn:read("line", 5))
        if i % 2 == 0 then conn:write("quit\n") end
        conn:close()
      end
      sleep(0.005)
      collectgarbage()
      collectgarbage()
      return collectgarbage("count")
    end
    exchange(rounds // 3)
    local before = exchange(rounds // 3)
    local after = exchange(rounds)
    assert.is_true(after < before * 1.1 + 20, before .. " " .. after)
    server:close()
    await(serving)
  end)
end)

describe("SIGPIPE (R78)", function()
  local function disposition(prelude)
    local status, out, err = helper.run_script((prelude or "") .. [[
      require "vigil"
      for line in io.lines("/proc/self/status") do
        local ignored = line:match("^SigIgn:%s*(%x+)")
        if ignored then
          io.write((tonumber(ignored, 16) >> 12) & 1)
        end
      end
    ]])
    assert.equal(0, status, err)
    return out
  end

  it("is ignored once vigil is loaded", function()
    assert.equal("1", disposition())
  end)
end)

describe("closing the state with a connection", function()
  local cases = {
    connecting = [[
      vigil.spawn(vigil.tcp.connect, "127.0.0.1", port)
      vigil.suspend() ]],
    reading = [[
      local c = assert(vigil.tcp.connect("127.0.0.1", port))
      vigil.spawn(c.read, c)
      vigil.suspend() ]],
    accepting = [[
      vigil.spawn(server.accept, server)
      vigil.suspend() ]],
    accepted = [[
      vigil.spawn(server.accept, server)
      vigil.suspend()
      for i = 1, 5 do KEEP[i] = assert(vigil.tcp.connect("127.0.0.1", port)) end
      vigil.sleep(0.002) ]],
    serving = [[
      vigil.spawn(server.serve, server, function(c) c:read("all") end)
      for i = 1, 5 do KEEP[i] = assert(vigil.tcp.connect("127.0.0.1", port)) end
      vigil.sleep(0.002) ]],
  }
  for name, code in pairs(cases) do
    it(name .. ": quiet (R01, R03)", function()
      local status, out, err = helper.run_script([[
        local vigil = require "vigil"
        KEEP = {}
        vigil.run(function()
          server = assert(vigil.tcp.listen("127.0.0.1", 0))
          local _, port = server:sockname()
          ]] .. code .. [[
          os.exit(9, true)
        end)
      ]])
      assert.equal(9, status, err)
      assert.equal("", out .. err)
    end)
  end

  it("makes every later call say that the loop is closed (R05)", function()
    local status, out, err = helper.run_script([[
      local calls
      -- Finalizers run in reverse order: this one after vigil's own.
      KEEP = setmetatable({}, { __gc = function()
        for i, call in ipairs(calls) do
          local ok, message = pcall(call)
          assert(not ok, i)
          assert(tostring(message):find("loop is closed"), tostring(message))
        end
        io.write("done\n")
      end })
      local vigil = require "vigil"
      local a, b = assert(vigil.pipe.pair())
      local server = assert(vigil.tcp.listen("127.0.0.1", 0))
      calls = {
        function() return a:read() end,
        function() return b:write("x") end,
        function() return a:close() end,
        function() return a:setoption("nodelay", true) end,
        function() return server:accept() end,
        function() return server:close() end,
        function() return vigil.pipe.pair() end,
        function() return vigil.tcp.listen("127.0.0.1", 0) end,
        function() return vigil.tcp.connect("127.0.0.1", 1) end,
        function() return vigil.tcp.connect("localhost", 1) end,
        function() return vigil.pipe.listen("/nowhere") end,
      }
    ]])
    assert.equal(0, status, err)
    assert.equal("done\n", out)
  end)
end)
