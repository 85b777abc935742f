-- Unix sockets: paths, abstract names, a full backlog.  FIELD-REPORTS R98,
-- R82, R74.

local helper = require "spec.helper"
local vigil = require "vigil"

local spawn, suspend, await = vigil.spawn, vigil.suspend, vigil.await
local pipe = vigil.pipe

local function spec(name, fn)
  it(name, helper.in_vigil(fn))
end

local function assert_err(code, kind, value, err)
  assert.is_nil(value)
  assert.is_true(vigil.is_error(err), tostring(err))
  assert.equal(code, err.code)
  assert.equal(kind, err.kind)
end

-- A name for a socket that does not exist.
local function new_path()
  local path = os.tmpname()
  os.remove(path)
  return path
end

local function exists(path)
  return os.rename(path, path) ~= nil
end

-- A path of exactly n bytes.
local function path_of(n)
  local path = new_path()
  return path .. ("x"):rep(n - #path)
end

describe("a unix socket", function()
  spec("listens, connects, and tells its names", function()
    local path = new_path()
    local server = assert(pipe.listen(path))
    assert.equal(path, server:sockname())
    local client = assert(pipe.connect(path))
    local conn = assert(server:accept())
    client:write("hello")
    assert.equal("hello", conn:read())
    assert.equal(path, client:peername())
    assert.equal(path, conn:sockname())
    assert.equal("", client:sockname())
    assert.is_truthy(tostring(client):find(path, 1, true))
    client:close()
    assert.is_nil(conn:read())
    conn:close()
    server:close()
  end)

  spec("is removed when the server closes, or is collected", function()
    local path = new_path()
    local server = assert(pipe.listen(path))
    assert.is_true(exists(path))
    server:close()
    assert.is_false(exists(path))
    local function listen_and_drop() assert(pipe.listen(path)) end
    listen_and_drop()
    collectgarbage()
    collectgarbage()
    suspend()
    assert.is_false(exists(path))
  end)

  spec("in use: EADDRINUSE, and the file stays (R82)", function()
    local path = new_path()
    local server = assert(pipe.listen(path))
    local other, err = pipe.listen(path)
    assert_err("EADDRINUSE", "io", other, err)
    assert.is_truthy(tostring(err):find("listen " .. path, 1, true))
    assert.is_true(exists(path))
    local client = assert(pipe.connect(path))
    client:close()
    server:close()
  end)

  spec("that is not there, or nobody's: fails with its path (R74)",
    function()
      local path = new_path()
      local conn, err = pipe.connect(path)
      assert_err("ENOENT", "io", conn, err)
      assert.is_truthy(tostring(err):find("(connect " .. path, 1, true))
      io.open(path, "w"):close()
      assert_err("ECONNREFUSED", "io", pipe.connect(path))
      os.remove(path)
      assert_err("ENOENT", "io", pipe.listen("/no/such/directory/socket"))
    end)

  spec("with a path that is too long: ENAMETOOLONG, no file (R98)",
    function()
      local path = path_of(150)
      assert_err("ENAMETOOLONG", "io", pipe.listen(path))
      assert_err("ENAMETOOLONG", "io", pipe.connect(path))
      for n = 1, 150 do
        assert.is_false(exists(path:sub(1, n)) and n > 100)
      end
    end)

  spec("with a path of 107 bytes works (R98)", function()
    local path = path_of(107)
    local server = assert(pipe.listen(path))
    local client = assert(pipe.connect(path))
    local conn = assert(server:accept())
    assert.equal(path, client:peername())
    client:close()
    conn:close()
    server:close()
    assert.is_false(exists(path))
    assert_err("ENAMETOOLONG", "io", pipe.listen(path_of(108)))
  end)

  spec("with an abstract name, zeros and all (R98)", function()
    local name = "\0vigil\0spec\0" .. new_path()
    local server = assert(pipe.listen(name))
    assert.equal(name, server:sockname())
    assert_err("EADDRINUSE", "io", pipe.listen(name))
    assert_err("ECONNREFUSED", "io", pipe.connect(name .. "x"))
    local client = assert(pipe.connect(name))
    local conn = assert(server:accept())
    client:write("x")
    assert.equal("x", conn:read())
    assert.equal(name, client:peername())
    client:close()
    conn:close()
    server:close()
  end)

  spec("refuses names that are none", function()
    assert_err("EINVAL", "io", pipe.listen(""))
    assert_err("EINVAL", "io", pipe.connect("a\0b"))
    assert_err("EINVAL", "io", pipe.connect("\0"))
    assert.has_error(function() pipe.listen() end)
    assert.has_error(function() pipe.listen("x", { colour = 1 }) end)
    assert.has_error(function() pipe.listen("x", { backlog = 0 }) end)
  end)
end)

describe("a full backlog", function()
  spec("makes connect wait for a place", function()
    local path = new_path()
    local server = assert(pipe.listen(path, { backlog = 1 }))
    local clients = {}
    for i = 1, 20 do clients[i] = spawn(pipe.connect, path) end
    vigil.sleep(0.005)
    local waiting = 0
    for i = 1, 20 do
      if clients[i].state == "suspended" then waiting = waiting + 1 end
    end
    assert.is_true(waiting > 10, tostring(waiting))
    for _ = 1, 20 do assert(server:accept(5)):close() end
    for i = 1, 20 do assert(await(clients[i])):close() end
    server:close()
  end)

  spec("and a time limit: ETIMEDOUT, nothing left", function()
    local path = new_path()
    local server = assert(pipe.listen(path, { backlog = 1 }))
    local kept, conn, err = {}, nil, nil
    for _ = 1, 10 do
      conn, err = pipe.connect(path, 0.01)
      if not conn then break end
      kept[#kept + 1] = conn
    end
    assert_err("ETIMEDOUT", "timeout", conn, err)
    local waiting = spawn(pipe.connect, path)
    suspend()
    assert.equal("suspended", waiting.state)
    assert.is_truthy(waiting:awaiting()[1]:find("connect", 1, true))
    waiting:cancel()
    assert.is_false((vigil.pawait(waiting)))
    -- the server goes while one waits
    waiting = spawn(pipe.connect, path)
    suspend()
    server:close()
    conn, err = await(waiting)
    assert.is_nil(conn)
    assert.is_truthy(err.code == "ENOENT" or err.code == "ECONNREFUSED")
    for _, each in ipairs(kept) do each:close() end
  end)

  it("with one waiting when the state closes: quiet (R01)", function()
    local status, out, err = helper.run_script([[
      local vigil = require "vigil"
      local path = arg[1]
      vigil.run(function()
        KEEP = { assert(vigil.pipe.listen(path, { backlog = 1 })) }
        for i = 1, 10 do vigil.spawn(vigil.pipe.connect, path) end
        vigil.sleep(0.005)
        os.exit(9, true)
      end)
    ]], { args = { new_path() } })
    assert.equal(9, status, err)
    assert.equal("", out .. err)
  end)
end)

describe("a pair", function()
  spec("is two connected handles", function()
    local a, b = assert(pipe.pair())
    a:write("1")
    b:write("2")
    assert.equal("2", a:read())
    assert.equal("1", b:read())
    a:close()
    assert.is_nil(b:read())
    b:close()
  end)
end)
