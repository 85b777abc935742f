-- Servers: accepting, iterating, serving, running out of descriptors, bursts.
-- DESIGN 3, 5.15; SEMANTICS IO-16, IO-17; FIELD-REPORTS R14, R81, R82, R84.

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

local function listen(options)
  local server = assert(tcp.listen("127.0.0.1", 0, options))
  return server, select(2, server:sockname())
end

local function assert_err(code, kind, value, err)
  assert.is_nil(value)
  assert.is_true(vigil.is_error(err), tostring(err))
  assert.equal(code, err.code)
  assert.equal(kind, err.kind)
end

describe("listen", function()
  spec("gives the real port for 0 (R82, IO-16)", function()
    local server, port = listen()
    assert.is_true(port > 0)
    assert.equal("127.0.0.1", (server:sockname()))
    assert.is_truthy(tostring(server):find(":" .. port .. " (listening)", 1, true))
    server:close()
  end)

  spec("fails itself when the address is in use (R82)", function()
    local server, port = listen()
    local other, err = tcp.listen("127.0.0.1", port)
    assert_err("EADDRINUSE", "io", other, err)
    assert.is_truthy(tostring(err):find("listen 127.0.0.1:" .. port, 1, true))
    server:close()
    other = assert(tcp.listen("127.0.0.1", port)) -- free at once
    other:close()
  end)

  spec("takes a name, and nothing for every address", function()
    local server = assert(tcp.listen("localhost", 0))
    server:close()
    server = assert(tcp.listen("*", 0))
    assert.equal("0.0.0.0", (server:sockname()))
    local conn = assert(tcp.connect("127.0.0.1", select(2, server:sockname())))
    conn:close()
    server:close()
  end)

  spec("reuseport lets two servers share a port", function()
    local one, port = listen { reuseport = true }
    local two = assert(tcp.listen("127.0.0.1", port, { reuseport = true }))
    assert_err("EADDRINUSE", "io", tcp.listen("127.0.0.1", port))
    one:close()
    two:close()
  end)

  spec("checks its arguments by name", function()
    for _, args in ipairs { { 1, {} }, { "127.0.0.1" }, { "127.0.0.1", 65536 },
      { "127.0.0.1", 0, { colour = 1 } }, { "127.0.0.1", 0, 5 },
      { "127.0.0.1", 0, { backlog = "many" } } } do
      local ok, err = pcall(tcp.listen, args[1], args[2], args[3])
      assert.is_false(ok)
      assert.is_truthy(err:find("bad argument", 1, true), err)
    end
    assert_err("EADDRNOTAVAIL", "io", tcp.listen("192.0.2.1", 0))
  end)
end)

describe("accept", function()
  spec("waits for a connection", function()
    local server, port = listen()
    local acceptor = started(server.accept, server)
    assert.is_truthy(acceptor:awaiting()[1]:find("accept", 1, true))
    local client = assert(tcp.connect("127.0.0.1", port))
    local conn = await(acceptor)
    conn:write("hi")
    assert.equal("hi", client:read())
    client:close()
    conn:close()
    server:close()
  end)

  spec("serves acceptors in their order", function()
    local server, port = listen()
    local order, acceptors = {}, {}
    for i = 1, 3 do
      acceptors[i] = started(function()
        local conn = server:accept()
        order[#order + 1] = i
        conn:close()
      end)
    end
    for i = 1, 3 do
      tcp.connect("127.0.0.1", port):close()
      await(acceptors[i])
    end
    assert.same({ 1, 2, 3 }, order)
    server:close()
  end)

  spec("given up leaves the server usable (IO-17)", function()
    local server, port = listen()
    assert_err("ETIMEDOUT", "timeout", server:accept(0.002))
    assert_err("ETIMEDOUT", "timeout", server:accept(0))
    local token = vigil.timeout(0)
    sleep(0.001)
    assert_err("ETIMEDOUT", "timeout", server:accept(token))
    local cancelled = started(server.accept, server)
    cancelled:cancel()
    pawait(cancelled)
    local client = assert(tcp.connect("127.0.0.1", port))
    assert(server:accept()):close()
    client:close()
    server:close()
  end)

  spec("cancelled after it was woken hands the connection on", function()
    local server, port = listen()
    local first = started(server.accept, server)
    local second = started(server.accept, server)
    local client = assert(tcp.connect("127.0.0.1", port))
    while first.state == "suspended" do suspend() end
    local was_queued = first.state == "queued"
    first:cancel()
    if was_queued then
      local conn = assert(await(second))
      conn:close()
      assert.is_false((pawait(first)))
    else
      await(first):close()
      second:cancel()
      pawait(second)
    end
    client:close()
    server:close()
  end)

  spec("a connection that was promised is not taken by another", function()
    local server, port = listen()
    local first = started(server.accept, server)
    local second_result
    local client = assert(tcp.connect("127.0.0.1", port))
    spawn(function()
      while first.state == "suspended" do suspend() end
      second_result = table.pack(server:accept(0.002))
    end)
    local conn = assert(await(first))
    sleep(0.005)
    assert.equal("ETIMEDOUT", second_result[2].code)
    conn:close()
    client:close()
    server:close()
  end)

  spec("on a closed server fails, also while it waits (R84)", function()
    local server = listen()
    local one, two = started(server.accept, server), started(server.accept, server)
    local closed = started(await, server)
    server:close()
    server:close()
    assert_err("ECLOSED", "closed", await(one))
    assert_err("ECLOSED", "closed", await(two))
    assert.is_true(await(closed))
    assert_err("ECLOSED", "closed", server:accept())
    assert_err("ECLOSED", "closed", server:accept(1))
    assert_err("ECLOSED", "closed", server:sockname())
    assert_err("ECLOSED", "closed", server:fd())
    assert.is_true(server:is_closed())
  end)

  spec("closing drops what nobody took", function()
    local server, port = listen()
    local acceptor = started(server.accept, server)
    local clients = {}
    for i = 1, 5 do clients[i] = assert(tcp.connect("127.0.0.1", port)) end
    local conn = await(acceptor)
    sleep(0.002)
    server:close()
    local ended = 0
    for i = 1, 5 do
      spawn(function()
        clients[i]:read(5)
        ended = ended + 1
      end)
    end
    conn:close()
    sleep(0.01)
    assert.equal(5, ended)
    for i = 1, 5 do clients[i]:close() end
  end)

  spec("accepted sockets outlive the server (IO-16)", function()
    local server, port = listen()
    local client = assert(tcp.connect("127.0.0.1", port))
    local conn = assert(server:accept())
    server:close()
    server = nil
    collectgarbage()
    client:write("still here")
    assert.equal("still here", conn:read())
    client:close()
    conn:close()
    assert.is_nil(server)
  end)

  spec("a server nobody refers to is closed", function()
    local port
    do
      local server
      server, port = listen()
      assert(server)
    end
    collectgarbage()
    collectgarbage()
    suspend()
    assert_err("ECONNREFUSED", "io", tcp.connect("127.0.0.1", port))
  end)
end)

describe("for conn in server", function()
  spec("ends when it is closed", function()
    local server, port = listen()
    local count = 0
    local loop = spawn(function()
      for conn in server do
        count = count + 1
        conn:close()
      end
      return "ended"
    end)
    for _ = 1, 5 do tcp.connect("127.0.0.1", port):close() end
    sleep(0.005)
    server:close()
    assert.equal("ended", await(loop))
    assert.equal(5, count)
  end)
end)

describe("serve", function()
  spec("runs a handler for each connection, and closes it", function()
    local server, port = listen()
    local serving = spawn(server.serve, server, function(conn, from)
      assert.equal(server, from)
      for line in conn:lines() do conn:write({ line:upper(), "\n" }) end
    end)
    local clients = {}
    for i = 1, 10 do
      clients[i] = spawn(function()
        local conn = assert(tcp.connect("127.0.0.1", port))
        for j = 1, 5 do
          conn:write("message " .. j .. "\n")
          assert.equal("MESSAGE " .. j, conn:read("line"))
        end
        conn:shutdown()
        assert.is_nil(conn:read())
        conn:close()
      end)
    end
    for i = 1, 10 do await(clients[i]) end
    server:close()
    assert.is_true(await(serving))
  end)

  spec("a handler's error closes its connection, not the server", function()
    local server, port = listen()
    local failures = {}
    local serving = spawn(server.serve, server, function(conn)
      local line = conn:read("line")
      if line == "bad" then error("this one is bad", 0) end
      if line == "worse" then error({ code = 7 }) end
      conn:write("good\n")
    end, { on_error = function(err, conn)
      failures[#failures + 1] = err
      conn:write("sorry\n")
    end })
    local function ask(line)
      local conn = assert(tcp.connect("127.0.0.1", port))
      conn:write(line .. "\n")
      local answer = conn:read("all")
      conn:close()
      return answer
    end
    assert.equal("sorry\n", ask("bad"))
    assert.equal("good\n", ask("x"))
    assert.equal("sorry\n", ask("worse"))
    assert.equal("good\n", ask("y"))
    assert.equal("this one is bad", failures[1])
    assert.equal(7, failures[2].code)
    server:close()
    assert.is_true(await(serving))
  end)

  spec("without on_error it is reported as one that nobody took", function()
    local server, port = listen()
    local seen = {}
    vigil.on_unhandled(function(err, info) seen = { err, info } end)
    local serving = spawn(server.serve, server, function() error("oops", 0) end)
    local conn = assert(tcp.connect("127.0.0.1", port))
    assert.equal("", conn:read("all"))
    vigil.on_unhandled(nil)
    assert.equal("oops", seen[1])
    assert.is_truthy(seen[2].traceback:find("listen_spec", 1, true))
    conn:close()
    server:close()
    await(serving)
  end)

  spec("concurrency bounds the handlers", function()
    local server, port = listen()
    local now, most = 0, 0
    local serving = spawn(server.serve, server, function(conn)
      now = now + 1
      most = math.max(most, now)
      conn:read("all")
      now = now - 1
    end, { concurrency = 3 })
    local clients = {}
    for i = 1, 12 do
      clients[i] = spawn(function()
        local conn = assert(tcp.connect("127.0.0.1", port))
        sleep(0.003)
        conn:shutdown()
        conn:read("all")
        conn:close()
      end)
    end
    for i = 1, 12 do await(clients[i]) end
    server:close()
    await(serving)
    assert.equal(3, most)
    assert.equal(0, now)
  end)

  spec("cancelled, it cancels its handlers and waits for them", function()
    local server, port = listen()
    local ended = 0
    local serving = spawn(server.serve, server, function(conn)
      local _ <close> = setmetatable({}, { __close = function()
        ended = ended + 1
      end })
      conn:read("all")
    end)
    local clients = {}
    for i = 1, 3 do clients[i] = assert(tcp.connect("127.0.0.1", port)) end
    sleep(0.005)
    serving:cancel()
    assert.is_true(vigil.is_error(select(2, pawait(serving)), "cancelled"))
    assert.equal(3, ended)
    for i = 1, 3 do
      assert.equal("", clients[i]:read("all"))
      clients[i]:close()
    end
    server:close()
  end)

  spec("stops with its token, when the handlers are done", function()
    local server, port = listen()
    local serving = spawn(server.serve, server, function(conn)
      conn:read("all")
    end, { token = 0.01 })
    local conn = assert(tcp.connect("127.0.0.1", port))
    sleep(0.02)
    assert.equal("suspended", serving.state)
    conn:close()
    assert_err("ETIMEDOUT", "timeout", await(serving))
    server:close()
  end)

  spec("checks its arguments", function()
    local server = listen()
    assert.has_error(function() server:serve() end)
    assert.has_error(function() server:serve(print, 5) end)
    assert.has_error(function() server:serve(print, { concurrency = 0 }) end)
    server:close()
  end)
end)

describe("a burst of 1,000 connects", function()
  -- The clients are a process of their own: one that does nothing else.
  it("is accepted in few turns of the loop", function()
    local count = helper.sanitized and 200 or 1000
    local status, out, err = helper.run_script([[
      local vigil = require "vigil"
      local count = tonumber(arg[1])
      vigil.run(function()
        local server = assert(vigil.tcp.listen("127.0.0.1", 0))
        local _, port = server:sockname()
        local clients, taken, rounds, longest = {}, 0, 0, 0
        local ticker = vigil.spawn(function()
          while true do
            local before = vigil.now()
            vigil.sleep(0.001)
            longest = math.max(longest, vigil.now() - before)
          end
        end)
        local conns = {}
        vigil.spawn(function()
          for conn in server do
            taken = taken + 1
            conns[taken] = conn
          end
        end)
        local slowest = 0
        local group = {}
        for i = 1, count do
          group[i] = vigil.spawn(function()
            local before = vigil.now()
            local conn = assert(vigil.tcp.connect("127.0.0.1", port))
            slowest = math.max(slowest, vigil.now() - before)
            clients[i] = conn
          end)
        end
        for i = 1, count do vigil.await(group[i]) end
        while taken < count do vigil.sleep(0.001) end
        ticker:cancel()
        for i = 1, count do conns[i]:close() clients[i]:close() end
        server:close()
        print(slowest, longest)
      end)
    ]], { args = { count } })
    assert.equal(0, status, err)
    local slowest, longest = out:match("(%S+)%s+(%S+)")
    local slack = helper.sanitized and 10 or 1
    assert.is_true(tonumber(slowest) < 0.8 * slack, out)
    assert.is_true(tonumber(longest) < 0.4 * slack, out)
  end)
end)

describe("10,000 connections", function()
  it("are served, and cost little while idle", function()
    if helper.sanitized then return end
    local count = 4900 -- both ends are here: twice as many descriptors
    local status, out, err = helper.run_script([[
      local vigil = require "vigil"
      local count = tonumber(arg[1])
      local function resident()
        local file = io.open("/proc/self/statm")
        local pages = file:read("a"):match("%d+ (%d+)")
        file:close()
        return pages * 4096
      end
      vigil.run(function()
        local server = assert(vigil.tcp.listen("127.0.0.1", 0))
        local _, port = server:sockname()
        vigil.spawn(server.serve, server, function(conn)
          while true do
            local data = conn:read()
            if not data then return end
            conn:write(data)
          end
        end)
        local clients = {}
        local function connect(n)
          for _ = 1, n do
            local conn = assert(vigil.tcp.connect("127.0.0.1", port))
            conn:write("hello")
            assert(conn:read(5) == "hello")
            clients[#clients + 1] = conn
          end
        end
        connect(100)
        collectgarbage()
        local before = resident()
        connect(count - 100)
        collectgarbage()
        collectgarbage()
        local each = (resident() - before) / (count - 100)
        for i = 1, count, 100 do
          clients[i]:write("again")
          assert(clients[i]:read(5) == "again")
        end
        for _, conn in ipairs(clients) do conn:close() end
        server:close()
        print(each)
      end)
    ]], { args = { count } })
    assert.equal(0, status, err)
    -- the client's handle, too
    assert.is_true(tonumber(out) < 2560 + 1000, out)
  end)
end)

describe("out of descriptors", function()
  -- R81: a process with 80 descriptors and 150 clients that come and stay.
  local function run(script)
    local path = os.tmpname()
    local file = assert(io.open(path, "w"))
    file:write(script)
    file:close()
    local status, out, err = helper.run_script([[
      os.exit(select(3, os.execute("ulimit -S -n 80; exec " .. arg[1] .. " " .. arg[2])))
    ]], { args = { os.getenv("LUA") or "lua5.4", path } })
    os.remove(path)
    return status, out, err
  end

  it("clients wait, nothing spins, one report; then they are served (R81)",
    function()
      local status, out, err = run([[
        local vigil = require "vigil"
        local reports = 0
        vigil.on_unhandled(function(err, info)
          reports = reports + 1
          assert(err.code == "EMFILE", tostring(err))
          print(tostring(err), info.what)
        end)
        vigil.run(function()
          local server = assert(vigil.tcp.listen("127.0.0.1", 0))
          local _, port = server:sockname()
          -- the clients, in a process of their own
          local script = os.tmpname()
          local file = io.open(script, "w")
          file:write([=[
            local vigil = require "vigil"
            vigil.run(function()
              local port = tonumber(arg[1])
              for i = 1, 150 do
                vigil.spawn(function()
                  local conn = assert(vigil.tcp.connect("127.0.0.1", port))
                  conn:write("x")
                  conn:read("all")
                end)
              end
            end)
          ]=])
          file:close()
          os.execute("(ulimit -S -n 500; exec " .. (os.getenv "LUA" or "lua5.4") .. " "
            .. script .. " "
            .. port .. ") >/dev/null 2>&1 &")
          local conns, served = {}, 0
          local accepting = vigil.spawn(function()
            for conn in server do
              conns[#conns + 1] = conn
              vigil.spawn(function()
                conn:read(1)
                served = served + 1
              end)
            end
          end)
          local deadline = vigil.now() + 5
          while reports == 0 and vigil.now() < deadline do vigil.sleep(0.01) end
          assert(reports == 1, "no report")
          local full = #conns
          local cpu = os.clock()
          vigil.sleep(0.5)
          assert(os.clock() - cpu < 0.05, "it spins")
          assert(#conns == full)
          assert(served == full, "the accepted ones are served")
          assert(accepting.state == "suspended")
          -- room again
          local freed = vigil.now()
          for i = 1, 40 do conns[i]:close() end
          while #conns < full + 35 and vigil.now() < freed + 2 do
            vigil.sleep(0.01)
          end
          assert(#conns >= full + 35, #conns - full)
          assert(vigil.now() - freed < 1, "too late")
          while #conns < 150 do
            for i = 1, #conns do conns[i]:close() end
            vigil.sleep(0.01)
            assert(vigil.now() < freed + 10, #conns)
          end
          for i = 1, #conns do conns[i]:close() end
          server:close()
          vigil.await(accepting)
          assert(reports == 1)
          os.remove(script)
          print("done")
        end)
      ]])
      assert.equal(0, status, err)
      assert.is_truthy(out:find("EMFILE: too many open files (accept 127.0.0.1:", 1, true), out)
      assert.is_truthy(out:find("done\n$"), out)
    end)

  it("first collects what only the collector holds (5.15)", function()
    local status, out, err = run([[
      local vigil = require "vigil"
      vigil.on_unhandled(function(err) print("report", tostring(err)) end)
      vigil.run(function()
        collectgarbage("stop") -- a program that makes little garbage
        local server = assert(vigil.tcp.listen("127.0.0.1", 0))
        local _, port = server:sockname()
        for i = 1, 200 do
          -- both ends are dropped, not closed
          assert(vigil.tcp.connect("127.0.0.1", port))
          assert(server:accept(2))
        end
        for i = 1, 100 do assert(vigil.pipe.pair()) end
        for i = 1, 100 do assert(vigil.tcp.listen("127.0.0.1", 0)) end
        for i = 1, 100 do
          assert(vigil.pipe.listen("\0vigil-spec-" .. port .. "-" .. i))
        end
        server:close()
        print("done")
      end)
    ]])
    assert.equal(0, status, err)
    assert.equal("done\n", out)
  end)

  it("other calls fail with EMFILE when that does not help", function()
    local status, out, err = run([[
      local vigil = require "vigil"
      vigil.run(function()
        local kept = {}
        while true do
          local a, b = vigil.pipe.pair()
          if not a then
            assert(b.code == "EMFILE", tostring(b))
            break
          end
          kept[#kept + 1] = a
          kept[#kept + 1] = b
        end
        -- a pair needs two: take the last one, if there is one
        local last = vigil.tcp.listen("127.0.0.1", 0)
        local server, err = vigil.tcp.listen("127.0.0.1", 0)
        assert(not server and err.code == "EMFILE", tostring(err))
        local conn
        conn, err = vigil.tcp.connect("127.0.0.1", 1)
        assert(not conn and err.code == "EMFILE", tostring(err))
        conn, err = vigil.pipe.connect("/nowhere")
        assert(not conn and err.code == "EMFILE", tostring(err))
        if last then last:close() end
        kept[1]:close()
        conn, err = vigil.tcp.connect("127.0.0.1", 1)
        assert(not conn and err.code == "ECONNREFUSED", tostring(err))
        print("done")
      end)
    ]])
    assert.equal(0, status, err)
    assert.equal("done\n", out)
  end)

  it("closing the state meanwhile is quiet (R01)", function()
    local status, out, err = run([[
      local vigil = require "vigil"
      vigil.on_unhandled(function() end)
      vigil.run(function()
        local server = assert(vigil.tcp.listen("127.0.0.1", 0))
        local _, port = server:sockname()
        local kept = {}
        vigil.spawn(function()
          for conn in server do kept[#kept + 1] = conn end
        end)
        for i = 1, 100 do
          local conn = vigil.tcp.connect("127.0.0.1", port)
          if not conn then break end
          kept[#kept + 1] = conn
        end
        vigil.sleep(0.05)
        KEEP = { kept, server }
        os.exit(9, true)
      end)
    ]])
    assert.equal(9, status, err)
    assert.equal("", out .. err)
  end)
end)

describe("wrong arguments of servers", function()
  local function message(fn, ...)
    local ok, err = pcall(fn, ...)
    assert.is_false(ok)
    return err
  end

  it("a port out of range is refused with what was given", function()
    assert.matches("#2 to 'listen' %(port from 0 to 65535 expected, got 70000",
      message(tcp.listen, "127.0.0.1", 70000))
    assert.matches("#2 to 'connect' %(port from 0 to 65535 expected, got x",
      message(tcp.connect, "127.0.0.1", "x"))
  end)

  it("an unknown option of serve is refused by name", function()
    vigil.run(function()
      local server = assert(vigil.tcp.listen("127.0.0.1", 0))
      assert.matches("#3 to 'serve' %(unknown option 'concurency'%)",
        message(server.serve, server, print, { concurency = 1 }))
      server:close()
    end)
  end)
end)
