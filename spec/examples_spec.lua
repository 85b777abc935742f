-- Every example runs as it stands and says what it should; servers are also
-- run as a process of their own, with a client here and Ctrl-C at the end.

local lfs = require "lfs"
local helper = require "spec.helper"

local function run(name, args, options)
  options = options or {}
  options.args = args
  local status, out, err = helper.run_script(
    ("examples/%s.lua"):format(name), options)
  return out, status, err
end

-- Fails with everything that the example printed.
local function succeeds(name, args)
  local out, status, err = run(name, args)
  assert(status == 0, ("%s: exit status %d\n%s%s"):format(name, status, out,
    err))
  assert.equal("", err)
  return out
end

-- What it prints, line by line, in order; other lines may be between.
local function prints(name, args, expected)
  local out = succeeds(name, args)
  local from = 1
  for _, text in ipairs(expected) do
    local _, last = out:find(text, from, true)
    assert(last, ("%s does not print '%s' (in this order):\n%s"):format(name,
      text, out))
    from = last + 1
  end
end

-- A client for a server in a process of its own: what both do is in `code`,
-- which has `host` and `port`.  Ctrl-C must end the server with status 0.
local function serve(name, args, code)
  local script = ([[
    local vigil = require "vigil"
    local pipe = io.popen(("echo $$; exec %s examples/%s.lua %s")
      :format(os.getenv "LUA" or arg[-1], "@name", "@args"))
    local pid = pipe:read "l"
    local host, port = pipe:read "l":match "^listening on (.*):(%d+)$"
    port = math.tointeger(tonumber(port))
    local function client()
      @code
    end
    local ok, err = pcall(vigil.run, vigil.with_timeout, 15, client)
    os.execute("kill -INT " .. pid)
    pipe:read "a"
    local _, how, status = pipe:close()
    if not ok then error(err, 0) end
    if how ~= "exit" or status ~= 0 then
      error(("the server ended by %s %d"):format(how, status))
    end
  ]]):gsub("@(%a+)", { name = name, args = args, code = code })
  local status, out, err = helper.run_script(script, { timeout = 30 })
  assert(status == 0, ("%s: exit status %d\n%s%s"):format(name, status, out,
    err))
  return out
end

describe("example", function()
  it("hello", function()
    prints("hello", {}, { "hello, Lua\n", "hello, world\n", "8 letters" })
  end)

  it("timeout", function()
    prints("timeout", {}, { "one call:\tnil\ttimeout", "call 1:\tnil\ttimeout",
      "call 2:\tnil\ttimeout", "a block:\tfalse\ttimeout",
      "timeout 0:\tthere" })
  end)

  it("channel_pipeline", function()
    assert.equal("the\t3\ndog\t2\n", succeeds("channel_pipeline"))
    assert.equal("b\t3\na\t2\n",
      succeeds("channel_pipeline", { "a b\nb c a\nb" }))
  end)

  it("worker_pool", function()
    prints("worker_pool", {}, { "sum\t385\n" })
    prints("worker_pool", { "1", "4" }, { "1 squared is 1\n",
      "2 squared is 4\n", "3 squared is 9\n", "4 squared is 16\n",
      "worker 1 did 4 jobs\n", "sum\t30\n" })
  end)

  it("periodic_job finishes its job when it is asked to stop", function()
    local out = succeeds("periodic_job")
    local _, begun = out:gsub("begins", "")
    local _, done = out:gsub("is done", "")
    assert.equal(begun, done)
    assert.truthy(out:find("stopping on SIGTERM\ndid " .. done .. " jobs", 1,
      true))
  end)

  it("generator", function()
    prints("generator", {}, { "record\t12\nrecord\t22\nrecord\t32\n",
      "others ran meanwhile" })
  end)

  it("step_by_step", function()
    prints("step_by_step", {}, { "step 1 asks for flour for a cake",
      "step 2 asks for eggs for a cake", "made a cake of 250 g and 3 eggs" })
  end)

  it("user_awaitable", function()
    local out = succeeds("user_awaitable")
    for i = 1, 3 do
      assert.truthy(out:find("part " .. i .. " is ready", 1, true))
    end
    assert.truthy(out:find("after 0.06 s:\tfalse\ttimeout", 1, true))
    assert.truthy(out:find("select:\t1\topened", 1, true))
    assert.truthy(out:find("later:\topen already", 1, true))
  end)

  it("echo_server", function()
    prints("echo_server", {}, { "one\t->\tone\n", "three\t->\tthree\n" })
  end)

  it("echo_server with two clients at a time, until Ctrl-C", function()
    serve("echo_server", "0", [[
      local first = assert(vigil.tcp.connect(host, port, 5))
      local second = assert(vigil.tcp.connect(host, port, 5))
      assert(first:write "a\n")
      assert(second:write(("b"):rep(100000) .. "\n"))
      assert(second:read("line", 5) == ("b"):rep(100000))
      assert(first:read("line", 5) == "a")
      first:shutdown()
      assert(first:read("all", 5) == "")
      -- the second stays open: Ctrl-C must end the server all the same
    ]])
  end)

  it("chat_server", function()
    prints("chat_server", {}, { "Ann\tBob: hello\n", "Bob\tAnn has left\n" })
  end)

  it("chat_server tells everybody, until Ctrl-C", function()
    serve("chat_server", "0", [[
      local conns = {}
      for i = 1, 20 do
        local conn = assert(vigil.tcp.connect(host, port, 5))
        assert(conn:read("line", 5) == "your name?")
        assert(conn:write("client " .. i .. "\n"))
        assert(conn:read("line", 5) == "client " .. i .. " is here")
        conns[i] = conn
      end
      assert(conns[1]:write "all there?\n")
      for _, conn in ipairs(conns) do
        repeat
          local line = assert(conn:read("line", 5))
        until line == "client 1: all there?"
      end
    ]])
  end)

  it("port_forwarder", function()
    prints("port_forwarder", {}, { "LOUDER, PLEASE\n" })
  end)

  it("port_forwarder in front of a server, until Ctrl-C", function()
    local target = [[
      local vigil = require "vigil"
      local back = assert(vigil.tcp.listen("127.0.0.1", 0))
      local pipe = io.popen(("echo $$; exec %s examples/port_forwarder.lua "
        .. "0 %s %d"):format(os.getenv "LUA" or arg[-1], back:sockname()))
      local pid = pipe:read "l"
      local port = math.tointeger(tonumber(pipe:read "l":match ":(%d+)$"))
      local ok, err = pcall(vigil.run, vigil.with_timeout, 15, function()
        vigil.spawn(back.serve, back, function(conn)
          local size = #conn:read "all"
          conn:write(size .. " bytes")
        end)
        local conn <close> = assert(vigil.tcp.connect("127.0.0.1", port, 5))
        assert(conn:write(("x"):rep(1 << 20)))
        conn:shutdown()
        assert(conn:read("all", 5) == (1 << 20) .. " bytes")
        back:close()
      end)
      os.execute("kill -INT " .. pid)
      pipe:read "a"
      assert(pipe:close())
      if not ok then error(err, 0) end
    ]]
    local status, out, err = helper.run_script(target, { timeout = 30 })
    assert(status == 0, out .. err)
  end)

  it("tour, with every check", function()
    local clients = helper.sanitized and 50 or 200
    local out = succeeds("tour", { tostring(clients), "20" })
    assert.truthy(out:find(("%d connected, %d at once"):format(clients,
      clients), 1, true))
    assert.truthy(out:find "messages per second")
    assert.truthy(out:find "p50 [%d.]+ ms, p99 [%d.]+ ms")
    assert.truthy(out:find "every check held")
  end)

  it("tour takes fewer clients where descriptors are short", function()
    local status, out, err = helper.run_script([[
      local pipe = io.popen(("ulimit -n 130; exec %s examples/tour.lua 200 5")
        :format(os.getenv "LUA" or arg[-1]))
      local out = pipe:read "a"
      assert(pipe:close(), out)
      assert(out:find("note: ulimit -n is 130, so 40 clients instead of 200",
        1, true), out)
      assert(out:find("every check held", 1, true), out)
    ]])
    assert(status == 0, out .. err)
  end)

  it("tour stops at Ctrl-C with a summary and status 130", function()
    local status, out, err = helper.run_script([[
      local pipe = io.popen(("echo $$; exec %s examples/tour.lua 20 1000000")
        :format(os.getenv "LUA" or arg[-1]))
      local pid = pipe:read "l"
      os.execute("sleep 0.5; kill -INT " .. pid)
      local out = pipe:read "a"
      local _, how, code = pipe:close()
      assert(how == "exit" and code == 130, how .. " " .. code)
      assert(out:find "^interrupted", out)
      assert(out:find "peak memory", out)
    ]], { timeout = 30 })
    assert(status == 0, out .. err)
    assert.equal("", err)
  end)

  it("is under 60 lines, opens with its usage, and is run here", function()
    local seen = 0
    for file in lfs.dir("examples") do
      if file:find "%.lua$" then
        seen = seen + 1
        local count = 0
        local head = {}
        for line in io.lines("examples/" .. file) do
          count = count + 1
          if count <= 6 then head[count] = line end
        end
        assert.equal("-- " .. file .. ": ", head[1]:sub(1, #file + 5))
        assert.truthy(table.concat(head, "\n"):find("\n-- Usage: ", 1, true),
          file)
        if file ~= "tour.lua" then assert(count < 60, file) end
      end
    end
    assert.equal(12, seen)
  end)
end)
