-- The I/O handle, over connected pairs: reading, writing, back-pressure,
-- closing.  DESIGN 2.5, 3, 5.8, 5.21, 5.22; SEMANTICS IO; FIELD-REPORTS R07,
-- R09, R12, R14, R71, R72, R76, R77, R80, R83, R84, R86, R87.

local helper = require "spec.helper"
local vigil = require "vigil"

local spawn, sleep, suspend = vigil.spawn, vigil.sleep, vigil.suspend
local await, pawait = vigil.await, vigil.pawait

local function spec(name, fn)
  it(name, helper.in_vigil(fn))
end

-- A spec over a pair; both ends are closed afterwards.
local function pair_spec(name, fn)
  spec(name, function()
    local a, b = assert(vigil.pipe.pair())
    local _ <close> = a
    local _ <close> = b
    fn(a, b)
  end)
end

-- A coroutine that runs fn and has got as far as its first wait.
local function started(fn, ...)
  local co = spawn(fn, ...)
  suspend()
  return co
end

-- More than the kernel takes at once.
local BIG = ("0123456789abcdef"):rep(262144)

-- What one end gets when the other writes the pieces and ends.
local function reading(pieces, fn)
  local a, b = assert(vigil.pipe.pair())
  for _, piece in ipairs(pieces) do
    assert(a:write(piece))
  end
  assert(a:shutdown())
  local result = table.pack(fn(b))
  a:close()
  b:close()
  return table.unpack(result, 1, result.n)
end

local function assert_err(code, kind, value, err)
  assert.is_nil(value)
  assert.is_true(vigil.is_error(err), tostring(err))
  assert.equal(code, err.code)
  assert.equal(kind, err.kind)
end

describe("read", function()
  pair_spec("gives what is there, by default", function(a, b)
    a:write("some bytes")
    assert.equal("some bytes", b:read())
  end)

  pair_spec("'some' takes at most max", function(a, b)
    a:write("abcdef")
    assert.equal("abcd", b:read { "some", max = 4 })
    assert.equal("ef", b:read("some"))
  end)

  pair_spec("waits until there is something", function(a, b)
    local reader = started(b.read, b)
    assert.equal("suspended", reader.state)
    a:write("x")
    assert.equal("x", await(reader))
  end)

  pair_spec("n waits for all of it", function(a, b)
    local reader = started(b.read, b, 4)
    a:write("ab")
    sleep(0.005)
    assert.equal("suspended", reader.state)
    a:write("cdef")
    assert.equal("abcd", await(reader))
    assert.equal("ef", b:read())
  end)

  pair_spec("n = 0 is empty at once", function(_, b)
    assert.equal("", b:read(0))
  end)

  spec("n is short only at the end", function()
    reading({ "abc" }, function(b)
      assert.equal("abc", b:read(10))
      assert.equal(1, select("#", b:read(10)))
      assert.is_nil(b:read(10))
    end)
  end)

  spec("nil alone is the end, as often as asked (IO-01, IO-02)", function()
    reading({}, function(b)
      for _ = 1, 3 do
        assert.equal(1, select("#", b:read()))
        assert.is_nil((b:read()))
        assert.is_nil((b:read("line")))
      end
    end)
  end)

  spec("'all' gives the rest, then the empty string", function()
    reading({ "ab\n", "cd" }, function(b)
      assert.equal("ab", b:read("line"))
      assert.equal("cd", b:read("all"))
      assert.equal("", b:read("all"))
    end)
  end)

  spec("zeros and high bytes are bytes", function()
    local bytes = {}
    for i = 0, 255 do bytes[i + 1] = string.char(i) end
    local text = table.concat(bytes):rep(300)
    reading({ text, "\0\0\n\0" }, function(b)
      assert.equal(text .. "\0\0\n\0", b:read("all"))
    end)
  end)

  pair_spec("more than a buffer full arrives whole", function(a, b)
    local writer = spawn(a.write, a, BIG)
    assert.equal(BIG, b:read(#BIG))
    assert.is_true(await(writer))
  end)

  pair_spec("options in a table", function(a, b)
    a:write("one\r\ntwo\n")
    assert.equal("one\r\n", b:read { "line", keep_ends = true })
    assert.equal("tw", b:read { mode = 2 })
    assert.equal("o\n", b:read { mode = "some" })
    assert_err("ETIMEDOUT", "timeout", b:read { "line", token = 0.001 })
  end)

  pair_spec("misuse raises and names the argument", function(_, b)
    local function raises(text, ...)
      local ok, err = pcall(b.read, b, ...)
      assert.is_false(ok)
      assert.is_truthy(err:find(text, 1, true), err)
    end
    raises("mode: 'some', 'line' or 'all' expected, got 'lines'", "lines")
    raises("n: a number of bytes expected", -1)
    raises("n: a number of bytes expected", 1.5)
    raises("unknown option 'maximum'", { "line", maximum = 3 })
    raises("string expected", true)
    raises("timeout in seconds or awaitable", "line", "soon")
    assert.has_error(function() b:read_until("") end)
    assert.has_error(function() b.read(io.stdout) end)
  end)

  pair_spec("a second reader is refused, the first undisturbed (R83)",
    function(a, b)
      local first = started(b.read, b, 3)
      assert_err("EBUSY", "busy", b:read())
      assert_err("EBUSY", "busy", b:read("line", 1))
      a:write("abc")
      assert.equal("abc", await(first))
      a:write("d")
      assert.equal("d", b:read())
    end)

  pair_spec("what woke a reader is kept for it", function(a, b)
    local got
    local first = started(function() got = b:read(3) end)
    a:write("abcdef")
    -- turns the loop until the reader is queued, from a coroutine that runs
    -- before it
    local second = spawn(function()
      while first.state == "suspended" do suspend() end
      return b:read()
    end)
    local value, err = await(second)
    await(first)
    assert.equal("abc", got)
    if value then
      assert.equal("def", value)
    else
      assert.equal("EBUSY", err.code)
    end
  end)

  pair_spec("one reads while another writes (R83)", function(a, b)
    local reader = started(a.read, a, 5)
    local writer = started(a.write, a, BIG)
    assert.equal("suspended", reader.state)
    assert.equal("suspended", writer.state)
    assert(b:write("hello"))
    assert.equal("hello", await(reader))
    assert.equal(BIG, b:read(#BIG))
    assert.is_true(await(writer))
  end)
end)

describe("a read that times out", function()
  pair_spec("consumes nothing (R71, IO-06)", function(a, b)
    a:write("ab")
    assert_err("ETIMEDOUT", "timeout", b:read(4, 0.005))
    a:write("cdef")
    assert.equal("abcd", b:read(4))
    assert.equal("ef", b:read(2))
  end)

  pair_spec("nor does a line, nor read_until (R71)", function(a, b)
    a:write("ab")
    assert_err("ETIMEDOUT", "timeout", b:read("line", 0.005))
    assert_err("ETIMEDOUT", "timeout", b:read_until("--", 100, 0.005))
    assert_err("ETIMEDOUT", "timeout", b:read("all", 0.005))
    a:write("c\nd--e")
    assert.equal("abc", b:read("line"))
    assert.equal("d", b:read_until("--"))
    assert.equal("e", b:read())
  end)

  pair_spec("leaves the handle usable, as often as it happens (R72)",
    function(a, b)
      for i = 1, 20 do
        assert_err("ETIMEDOUT", "timeout", b:read(3, 0))
        if i % 5 == 0 then
          a:write("abc")
          assert.equal("abc", b:read(3))
        end
      end
    end)

  pair_spec("0 gives what has come already", function(a, b)
    a:write("now")
    sleep(0.005)
    assert_err("ETIMEDOUT", "timeout", b:read(10, 0))
    assert.equal("now", b:read("some", 0))
  end)

  pair_spec("any awaitable is a token", function(a, b)
    local future, promise = vigil.future()
    local reader = started(b.read, b, "line", future)
    promise:complete("enough")
    local value, err = await(reader)
    assert_err("ECANCELED", "cancelled", value, err)
    assert.equal(future, err.token)
    assert_err("ECANCELED", "cancelled", b:read("line", future))
    a:write("x\n")
    assert.equal("x", b:read("line"))
    local other <close> = assert(vigil.pipe.pair())
    reader = started(b.read, b, "line", other)
    other:close()
    assert_err("ECANCELED", "cancelled", await(reader))
  end)

  pair_spec("raises in a block, and the bytes stay", function(a, b)
    a:write("ab")
    local ok, err = pcall(vigil.with_timeout, 0.005, b.read, b, 4)
    assert.is_false(ok)
    assert.is_true(vigil.is_error(err, "timeout"))
    a:write("cd")
    assert.equal("abcd", b:read(4))
  end)

  pair_spec("races with the bytes: one of the two, always (R12)",
    function(a, b)
      local rounds = helper.collecting and 50 or 2000
      local got = 0
      for i = 1, rounds do
        spawn(function()
          if i % 3 == 0 then suspend() end
          a:write("x")
        end)
        local value, err = b:read(1, (i % 5) / 20000)
        if value then
          assert.equal("x", value)
        else
          assert.equal("ETIMEDOUT", err.code)
          assert.equal("x", b:read(1))
        end
        got = got + 1
      end
      assert.equal(rounds, got)
      assert_err("ETIMEDOUT", "timeout", b:read(1, 0))
    end)
end)

describe("a cancelled reader", function()
  pair_spec("raises, and the next one gets the bytes", function(a, b)
    local reader = started(b.read, b, 4)
    a:write("ab")
    sleep(0.002)
    reader:cancel()
    assert.is_true(vigil.is_error(select(2, pawait(reader)), "cancelled"))
    a:write("cd")
    assert.equal("abcd", b:read(4))
  end)

  pair_spec("loses nothing when it was woken already", function(a, b)
    local reader = started(b.read, b, 2)
    a:write("ab")
    while reader.state == "suspended" do suspend() end
    if reader.state == "queued" then reader:cancel() end
    local ok, value = pawait(reader)
    if not ok then value = b:read(2) end
    assert.equal("ab", value)
  end)

  pair_spec("raises before any effect", function(a, b)
    a:write("ab")
    sleep(0.002)
    local reader = spawn(function()
      vigil.current():cancel()
      return b:read(2)
    end)
    assert.is_false((pawait(reader)))
    assert.equal("ab", b:read(2))
  end)
end)

describe("lines", function()
  local INPUT = { "a\r\n", "b\rb\n", "\n", "c" }

  spec("end with \\n, or one \\r before it, or the end (R87)", function()
    reading(INPUT, function(b)
      local lines = {}
      for line in b:lines() do lines[#lines + 1] = line end
      assert.same({ "a", "b\rb", "", "c" }, lines)
    end)
  end)

  spec("keep their ends when asked (R87)", function()
    reading(INPUT, function(b)
      local lines = {}
      for line in b:lines { keep_ends = true } do
        lines[#lines + 1] = line
      end
      assert.same({ "a\r\n", "b\rb\n", "\n", "c" }, lines)
    end)
  end)

  spec("only one \\r goes", function()
    reading({ "a\r\r\n", "\r\n", "b\r" }, function(b)
      assert.equal("a\r", b:read("line"))
      assert.equal("", b:read("line"))
      assert.equal("b\r", b:read("line"))
      assert.is_nil(b:read("line"))
    end)
  end)

  pair_spec("come together from pieces", function(a, b)
    local reader = started(b.read, b, "line")
    for piece in ("split\r\n"):gmatch(".") do
      a:write(piece)
      sleep(0)
    end
    assert.equal("split", await(reader))
  end)

  spec("of all lengths, one byte at a time and all at once", function()
    local text, expected = {}, {}
    for i = 0, 300 do
      expected[#expected + 1] = ("x"):rep(i)
      text[#text + 1] = expected[#expected] .. (i % 2 == 0 and "\r\n" or "\n")
    end
    text = table.concat(text)
    for _, size in ipairs { 1000, 70000 } do
      local pieces = {}
      for i = 1, #text, size do pieces[#pieces + 1] = text:sub(i, i + size - 1) end
      reading(pieces, function(b)
        for i = 1, #expected do assert.equal(expected[i], b:read("line")) end
        assert.is_nil(b:read("line"))
      end)
    end
  end)

  pair_spec("above the limit fail and consume nothing (R86)", function(a, b)
    local writer = spawn(a.write, a, BIG)
    assert_err("EMSGSIZE", "io", b:read { "line", max = 8192 })
    assert_err("EMSGSIZE", "io", b:read { "line", max = 8192 })
    assert.equal(BIG:sub(1, 10000), b:read(10000))
    assert.equal(BIG:sub(10001), b:read(#BIG - 10000))
    assert.is_true(await(writer))
  end)

  pair_spec("at the limit are taken, one more is not", function(a, b)
    a:write(("x"):rep(10) .. "\r\n" .. ("y"):rep(11) .. "\n")
    assert.equal(("x"):rep(10), b:read { "line", max = 10 })
    assert_err("EMSGSIZE", "io", b:read { "line", max = 10 })
    assert.equal(("y"):rep(11), b:read { "line", max = 11 })
  end)

  pair_spec("have a default limit, which can be set (R86)", function(a, b)
    assert.equal(1048576, b:getoption("max_line"))
    local writer = spawn(a.write, a, BIG)
    assert_err("EMSGSIZE", "io", b:read("line"))
    assert(b:setoption("max_line", math.huge))
    assert.equal(math.huge, b:getoption("max_line"))
    spawn(function()
      await(writer)
      a:write("\n")
    end)
    assert.equal(BIG, b:read("line"))
  end)

  pair_spec("as an iterator raise an error that is no end", function(a, b)
    a:write("one\ntwo too long\n")
    local seen = {}
    local ok, err = pcall(function()
      for line in b:lines { max = 5 } do seen[#seen + 1] = line end
    end)
    assert.is_false(ok)
    assert.equal("EMSGSIZE", err.code)
    assert.same({ "one" }, seen)
  end)

  spec("read 'all' has a limit, too (R86)", function()
    reading({ ("x"):rep(1000) }, function(b)
      assert.equal(64 * 1048576, b:getoption("max_all"))
      assert_err("EMSGSIZE", "io", b:read { "all", max = 999 })
      assert.equal(1000, #b:read { "all", max = 1000 })
    end)
  end)
end)

describe("read_until", function()
  spec("leaves the separator out and takes it", function()
    reading({ "head\r\n\r\nbody" }, function(b)
      assert.equal("head", b:read_until("\r\n\r\n"))
      assert.equal("body", b:read("all"))
    end)
  end)

  pair_spec("finds a separator that comes in pieces", function(a, b)
    local reader = started(b.read_until, b, "<<>>")
    for _, piece in ipairs { "a<", "<", ">b<<", ">>c" } do
      a:write(piece)
      sleep(0)
    end
    assert.equal("a<<>b", await(reader))
    assert.equal("c", b:read())
  end)

  pair_spec("has a maximum", function(a, b)
    a:write("0123456789;")
    assert_err("EMSGSIZE", "io", b:read_until(";", 9))
    assert.equal("0123456789", b:read_until(";", 10))
  end)

  spec("at the end without it says so, and consumes nothing", function()
    reading({ "rest" }, function(b)
      assert_err("EOF", "io", b:read_until(";"))
      assert.equal("rest", b:read("all"))
      assert.equal(1, select("#", b:read_until(";")))
    end)
  end)
end)

describe("write", function()
  pair_spec("returns true", function(a, b)
    assert.is_true(a:write("x"))
    assert.is_true(a:write(""))
    assert.is_true(a:write({}))
    assert.equal("x", b:read())
  end)

  pair_spec("takes a table, and numbers in it", function(a, b)
    a:write({ "a", "", "b", 12, 1.5, "\0" })
    assert.equal("ab121.5\0", b:read())
    a:write(42)
    assert.equal("42", b:read())
  end)

  pair_spec("takes a table of any size", function(a, b)
    for _, n in ipairs { 1, 15, 16, 17, 1000 } do
      local pieces = {}
      for i = 1, n do pieces[i] = i .. "," end
      a:write(pieces)
      assert.equal(table.concat(pieces), b:read(#table.concat(pieces)))
    end
    local pieces = {}
    for i = 1, 12 do pieces[i] = BIG:sub(i, i + 500000) end
    local writer = spawn(a.write, a, pieces)
    local text = table.concat(pieces)
    assert.equal(text, b:read(#text))
    assert.is_true(await(writer))
  end)

  pair_spec("refuses what is no string, before any effect (R09)",
    function(a, b)
      for _, value in ipairs { true, { "a", true }, { {} }, print } do
        assert.has_error(function() a:write(value) end)
      end
      local many = {}
      for i = 1, 20 do many[i] = "x" end
      many[20] = false
      local ok, err = pcall(a.write, a, many)
      assert.is_false(ok)
      assert.is_truthy(err:find("element 20: string expected, got boolean", 1, true))
      assert.has_error(function() a:write() end)
      a:write("only this")
      assert.equal("only this", b:read())
    end)

  pair_spec("keeps the bytes of strings that are gone (R09)", function(a, b)
    local rounds = helper.collecting and 100 or 2000
    local writer = spawn(function()
      for i = 1, rounds do
        if i % 2 == 0 then
          assert(a:write(("%06d"):format(i):rep(50)))
        else
          assert(a:write({ ("%06d"):format(i):rep(20), ("%06d"):format(i):rep(30) }))
        end
        if i % 100 == 0 then collectgarbage() end
      end
      a:shutdown()
    end)
    for i = 1, rounds do
      if i % 50 == 0 then sleep(0) end
      assert.equal(("%06d"):format(i):rep(50), b:read(300))
    end
    await(writer)
    assert.is_nil(b:read())
  end)

  pair_spec("returns while the queue is below the mark, then waits",
    function(a, b)
      local written = 0
      local writer = started(function()
        while true do
          assert(a:write(("x"):rep(1000)))
          written = written + 1000
          vigil.checkpoint()
        end
      end)
      while writer.state ~= "suspended" do suspend() end
      assert.is_true(a:queued() <= 65536 + 1000, tostring(a:queued()))
      local before = written
      sleep(0.002)
      assert.equal(before, written)
      b:read(before // 2)
      sleep(0.002)
      assert.is_true(written > before)
      writer:cancel()
      pawait(writer)
      a:abort()
    end)

  pair_spec("keeps the queue bounded, whatever the sizes (R80)",
    function(a, b)
      local total = helper.collecting and 1000000 or 30000000
      local most, sizes = 0, { 10, 70000, 1, 300000, 65536 }
      local writer = spawn(function()
        local sent, i = 0, 0
        while sent < total do
          i = i + 1
          local size = math.min(sizes[i % #sizes + 1], total - sent)
          assert(a:write(("%d"):format(i % 10):rep(size)))
          sent = sent + size
          most = math.max(most, a:queued())
        end
        a:shutdown()
      end)
      local got = 0
      while true do
        local data = b:read()
        if not data then break end
        got = got + #data
      end
      await(writer)
      assert.equal(total, got)
      assert.is_true(most <= 65536, tostring(most))
    end)

  pair_spec("of several writers never interleaves (R80, IO-07, IO-09)",
    function(a, b)
      local count, size, expected = 8, 200000, 0
      local order = {}
      for i = 1, count do
        spawn(function()
          assert(a:write(string.char(64 + i):rep(size)))
          order[#order + 1] = i
        end)
        expected = expected + size
      end
      suspend()
      local text = b:read(expected)
      for i = 1, count do
        local part = text:sub((i - 1) * size + 1, i * size)
        assert.equal(string.char(64 + i):rep(size), part)
      end
      sleep(0.002)
      assert.same({ 1, 2, 3, 4, 5, 6, 7, 8 }, order)
    end)

  pair_spec("a small one waits behind a large one", function(a, b)
    local large = started(a.write, a, BIG)
    local small = started(a.write, a, "end")
    assert.equal("suspended", small.state)
    assert.equal(BIG .. "end", b:read(#BIG + 3))
    assert.is_true(await(large))
    assert.is_true(await(small))
  end)

  pair_spec("high_water can be set", function(a, b)
    assert.equal(65536, a:getoption("high_water"))
    a:setoption("high_water", 10000000)
    assert.is_true(a:write(BIG))
    assert.is_true(a:queued() > 1000000)
    assert.equal(BIG, b:read(#BIG))
    sleep(0.002)
    assert.equal(0, a:queued())
    a:setoption("high_water", 0)
    local writer = spawn(a.write, a, BIG)
    assert.equal(BIG, b:read(#BIG))
    assert.is_true(await(writer))
  end)
end)

describe("a write that was cut", function()
  pair_spec("says how much was written, and breaks the write side",
    function(a, b)
      local ok, err = a:write(BIG, 0.01)
      assert_err("ETIMEDOUT", "timeout", ok, err)
      assert.is_true(err.written > 0 and err.written < #BIG)
      local again, why = a:write("more")
      assert_err("EPIPE", "io", again, why)
      assert.equal(0, why.written)
      assert.is_truthy(tostring(why):find("given up half-way", 1, true))
      assert_err("EPIPE", "io", a:shutdown())
      -- what was counted does arrive, and reading goes on
      assert.equal(BIG:sub(1, err.written), b:read(err.written))
      b:write("back")
      assert.equal("back", a:read())
    end)

  pair_spec("by cancellation fails those behind it", function(a)
    local first = started(a.write, a, BIG)
    local second = started(a.write, a, "second")
    first:cancel()
    assert.is_true(vigil.is_error(select(2, pawait(first)), "cancelled"))
    local ok, err = await(second)
    assert_err("EPIPE", "io", ok, err)
    assert.equal(0, err.written)
  end)

  pair_spec("before it began is taken out, and breaks nothing (IO-08)",
    function(a, b)
      local first = started(a.write, a, BIG)
      local second = started(a.write, a, "second", 0.005)
      local third = started(a.write, a, "third")
      local fourth = started(a.write, a, "fourth")
      third:cancel()
      pawait(third)
      local ok, err = await(second)
      assert_err("ETIMEDOUT", "timeout", ok, err)
      assert.equal(0, err.written)
      assert.equal(BIG .. "fourth", b:read(#BIG + 6))
      assert.is_true(await(first))
      assert.is_true(await(fourth))
    end)

  pair_spec("with a token that had fired writes nothing", function(a, b)
    local token = vigil.timeout(0)
    sleep(0.001)
    local ok, err = a:write("no", token)
    assert_err("ETIMEDOUT", "timeout", ok, err)
    assert.equal(0, err.written)
    a:write("yes")
    assert.equal("yes", b:read())
  end)
end)

describe("shutdown", function()
  pair_spec("ends the write side alone (R76)", function(a, b)
    assert(a:write("request"))
    assert.is_true(a:shutdown())
    assert.equal("request", b:read("all"))
    local writer = spawn(function()
      b:write(BIG)
      b:close()
    end)
    assert.equal(BIG, a:read("all"))
    await(writer)
    assert.is_nil(a:read())
  end)

  pair_spec("makes writes fail with EPIPE (R76)", function(a)
    a:shutdown()
    assert_err("EPIPE", "io", a:write("late"))
    assert_err("EPIPE", "io", a:write(BIG))
  end)

  pair_spec("twice is fine, also at the same time", function(a)
    local first, second = spawn(a.shutdown, a), spawn(a.shutdown, a)
    assert.is_true(await(first))
    assert.is_true(await(second))
    assert.is_true(a:shutdown())
  end)

  pair_spec("waits for what was written before", function(a, b)
    local writer = started(a.write, a, BIG)
    local ending = started(a.shutdown, a)
    assert.equal("suspended", ending.state)
    assert_err("EPIPE", "io", a:write("between"))
    assert.equal(BIG, b:read("all"))
    assert.is_true(await(writer))
    assert.is_true(await(ending))
  end)

  pair_spec("whose wait is given up goes on", function(a, b)
    a:setoption("high_water", 1e7)
    a:write(BIG)
    assert_err("ETIMEDOUT", "timeout", a:shutdown(0.001))
    assert.equal(BIG, b:read("all"))
    assert.is_true(a:shutdown())
  end)
end)

describe("the peer is gone", function()
  pair_spec("writes fail, the process lives (R77)", function(a, b)
    b:close()
    local failed = 0
    for _ = 1, 100 do
      local ok, err = a:write("x")
      if not ok then
        failed = failed + 1
        assert.is_truthy(err.code == "EPIPE" or err.code == "ECONNRESET")
      end
    end
    assert.is_true(failed >= 99)
  end)

  pair_spec("a writer that waits is told", function(a, b)
    local writer = started(a.write, a, BIG)
    b:close()
    local ok, err = await(writer)
    assert.is_nil(ok)
    assert.is_true(err.written < #BIG)
    assert.is_truthy(err.code == "EPIPE" or err.code == "ECONNRESET")
  end)

  pair_spec("a reader gets what had come, then the end", function(a, b)
    b:write("last words")
    b:close()
    assert.equal("last words", a:read())
    assert.is_nil(a:read())
  end)
end)

describe("close", function()
  pair_spec("makes every call fail with 'closed' (IO-03, R74)", function(a)
    a:close()
    assert.is_true(a:is_closed())
    local calls = {
      read = {}, write = { "x" }, shutdown = {}, read_until = { "x" },
      fd = {}, sockname = {}, peername = {}, getoption = { "high_water" },
      setoption = { "high_water", 1 },
    }
    for name, args in pairs(calls) do
      assert_err("ECLOSED", "closed", a[name](a, table.unpack(args)))
    end
    assert_err("ECLOSED", "closed", a:read("line", 1))
    assert.has_error(function() a:lines()() end)
    assert.is_truthy(tostring(a):find("closed", 1, true))
  end)

  pair_spec("twice, thrice, and after it finished: silent (R14)", function(a)
    a:close()
    spawn(a.close, a)
    spawn(a.abort, a)
    suspend()
    a:close()
    sleep(0.002)
    a:close()
    a:abort()
  end)

  pair_spec("wakes the reader at once (R84)", function(_, b)
    local reader = started(b.read, b)
    b:close()
    suspend()
    assert.equal("completed", reader.state)
    assert_err("ECLOSED", "closed", await(reader))
  end)

  pair_spec("wakes writers, and says how far they got", function(a)
    local first = started(a.write, a, BIG)
    local second = started(a.write, a, "x")
    a:close()
    local ok, err = await(first)
    assert_err("ECLOSED", "closed", ok, err)
    assert.is_true(err.written > 0)
    ok, err = await(second)
    assert_err("ECLOSED", "closed", ok, err)
    assert.equal(0, err.written)
    a:abort()
  end)

  pair_spec("wakes who waits for it once (R14)", function(a)
    local woken = 0
    local waiter = started(function()
      local result = await(a)
      woken = woken + 1
      return result
    end)
    a:close()
    a:close()
    assert.is_true(await(waiter))
    assert.is_true(await(a))
    sleep(0.002)
    assert.equal(1, woken)
  end)

  pair_spec("sends what was acknowledged, in the background", function(a, b)
    a:setoption("high_water", 1e7)
    assert.is_true(a:write(BIG))
    a:close()
    assert_err("ECLOSED", "closed", a:write("x"))
    assert.equal(BIG, b:read("all"))
  end)

  it("keeps the run going until that is done", function()
    local received
    local before = helper.counts()
    vigil.run(function()
      local a, b = assert(vigil.pipe.pair())
      a:setoption("high_water", 1e7)
      a:write(BIG)
      a:close()
      spawn(function()
        sleep(0.005)
        received = b:read("all")
        b:close()
      end)
    end)
    assert.equal(#BIG, #received)
    helper.check_nothing_left(before)
  end)

  it("so does collecting it (2.5.4)", function()
    local received
    local before = helper.counts()
    vigil.run(function()
      local a, b = assert(vigil.pipe.pair())
      a:setoption("high_water", 1e7)
      a:write(BIG)
      a = nil -- luacheck: ignore
      collectgarbage()
      collectgarbage()
      received = b:read("all")
    end)
    assert.equal(#BIG, #received)
    helper.check_nothing_left(before)
  end)

  it("is not needed for bytes that were acknowledged", function()
    local received
    vigil.run(function()
      local a, b = assert(vigil.pipe.pair())
      a:setoption("high_water", 1e7)
      a:write(BIG)
      spawn(function()
        sleep(0.005)
        received = b:read(#BIG)
      end)
    end)
    assert.equal(#BIG, #received)
  end)

  pair_spec("gives up on a peer that takes nothing", function(a, b)
    assert.equal(60, a:getoption("linger"))
    a:setoption("linger", 0.01)
    a:setoption("high_water", 1e7)
    a:write(BIG)
    a:close()
    sleep(0.03)
    assert.is_truthy(tostring(a):find("closed", 1, true))
    assert.is_true(#b:read("all") < #BIG)
  end)

  pair_spec("does not give up on one that is slow", function(a, b)
    a:setoption("linger", 0.25)
    a:setoption("high_water", 1e7)
    a:write(BIG)
    a:close()
    local got = 0
    while true do
      local data = b:read { "some", max = 200000 }
      if not data then break end
      got = got + #data
      sleep(0.003)
    end
    assert.equal(#BIG, got)
  end)

  pair_spec("abort drops it", function(a, b)
    a:setoption("high_water", 1e7)
    assert.is_true(a:write(BIG))
    a:abort()
    local data = b:read("all")
    assert.is_true(not data or #data < #BIG)
  end)

  pair_spec("abort cuts short a close that is under way", function(a, b)
    a:setoption("high_water", 1e7)
    a:write(BIG)
    a:close()
    sleep(0.002)
    a:abort()
    assert.is_true(#b:read("all") < #BIG)
  end)

  pair_spec("releases the descriptor in a cancelled coroutine", function(a, b)
    local closer = spawn(function()
      vigil.current():cancel()
      a:close()
    end)
    await(closer)
    assert.is_nil(b:read())
  end)

  spec("is what leaving a block does", function()
    local a, b = assert(vigil.pipe.pair())
    do
      local handle <close> = a
      handle:write("x")
    end
    assert.is_true(a:is_closed())
    assert.equal("x", b:read("all"))
    b:close()
  end)

  spec("of a handle nobody refers to happens by itself (R07)", function()
    local a, b = assert(vigil.pipe.pair()) -- luacheck: ignore
    local reader = started(b.read, b)
    a = nil
    collectgarbage()
    collectgarbage()
    assert.is_nil(await(reader))
    assert.is_nil(a)
    b:close()
  end)

  spec("does not happen to one that somebody waits on (R07)", function()
    local a, b = assert(vigil.pipe.pair())
    local reader = started(b.read, b)
    b = nil
    collectgarbage()
    collectgarbage()
    assert.is_true(a:write("alive"))
    assert.equal("alive", await(reader))
    assert.is_nil(b)
    a:close()
  end)

  spec("and dropping in a loop keep nothing (R06, GC-07)", function()
    local rounds = helper.collecting and 50 or 1500
    for i = 1, rounds do
      local a, b = assert(vigil.pipe.pair())
      if i % 3 == 0 then a:write("x") end
      if i % 3 == 1 then b:close() end
      if i % 100 == 0 then
        collectgarbage()
        suspend()
      end
    end
    collectgarbage()
    collectgarbage()
    sleep(0.005)
    assert.is_true(helper.counts().handles <= 4)
  end)
end)

describe("waiting on a handle", function()
  it("is a deadlock when only this program could end it", function()
    local ok, err = pcall(vigil.run, function()
      vigil.configure { warnings = false }
      local a = vigil.pipe.pair()
      await(a)
    end)
    vigil.configure { warnings = true }
    assert.is_false(ok)
    assert.is_true(vigil.is_error(err, "deadlock"))
  end)

  pair_spec("says for what", function(_, b)
    local reader = started(b.read, b, "line")
    local text = reader:awaiting()[1]
    assert.is_truthy(text:find("read line", 1, true), text)
    b:close()
    await(reader)
  end)

  it("does not hold up the end when it is hidden", function()
    vigil.run(function()
      local a = vigil.pipe.pair()
      a:hide()
      spawn(a.read, a)
      suspend()
    end)
  end)

  it("goes on when only the main chunk waits", function()
    local a, b = assert(vigil.pipe.pair())
    assert.is_true(a:write("main"))
    assert.equal("main", b:read())
    assert_err("ETIMEDOUT", "timeout", b:read(1, 0.001))
    a:close()
    assert.is_nil(b:read())
    b:close()
    vigil.run(suspend)
  end)

  spec("a stream that is always ready starves nobody", function()
    local a, b = assert(vigil.pipe.pair())
    local ticks, stop = 0, false
    local ticker = spawn(function()
      while not stop do
        suspend()
        ticks = ticks + 1
      end
    end)
    spawn(function()
      while a:write("x") do vigil.checkpoint() end
    end)
    for _ = 1, 2000 do b:read(1) end
    stop = true
    await(ticker)
    b:close()
    a:close()
    assert.is_true(ticks >= 10, tostring(ticks))
  end)

  spec("options of a pipe", function()
    local a, b = assert(vigil.pipe.pair())
    local _ <close> = a
    local _ <close> = b
    assert_err("ENOTSUP", "io", a:setoption("nodelay", true))
    assert_err("ENOTSUP", "io", a:getoption("keepalive"))
    assert.is_true(b:setoption("sndbuf", 32768))
    assert.is_true(b:getoption("sndbuf") >= 32768)
    assert.has_error(function() a:setoption("colour", 1) end)
    assert.has_error(function() a:setoption("max_line", "long") end)
    assert.is_true(math.type(a:fd()) == "integer")
    assert.equal("", (a:sockname()))
    assert.equal("", (a:peername()))
  end)
end)

describe("1 GiB through a slow reader, scaled", function()
  -- 64 MiB here; memory must not depend on it.
  it("arrives in order and in bounded memory", function()
    local status, out, err = helper.run_script([[
      local vigil = require "vigil"
      local total = tonumber(arg[1])
      local function resident()
        local file = io.open("/proc/self/statm")
        local pages = file:read("a"):match("%d+ (%d+)")
        file:close()
        return pages * 4096
      end
      local grown
      vigil.run(function()
        local a, b = assert(vigil.pipe.pair())
        local block = ("0123456789abcdef"):rep(65536) -- 1 MiB
        vigil.spawn(function()
          for _ = 1, total // #block do assert(a:write(block)) end
          a:shutdown()
        end)
        local got, before = 0, nil
        while true do
          local data = b:read()
          if not data then break end
          local at = got % 16
          assert(data:sub(1, 16) == (block:sub(at + 1, at + 16)):sub(1, #data))
          got = got + #data
          if got > 8 * 1048576 and not before then
            collectgarbage()
            before = resident()
          end
        end
        assert(got == total, got)
        collectgarbage()
        grown = resident() - before
      end)
      io.write(grown)
    ]], { args = { (helper.sanitized and 16 or 64) * 1048576 } })
    assert.equal(0, status, err)
    if not helper.sanitized then
      assert.is_true(tonumber(out) < 4 * 1048576, out)
    end
  end)
end)

describe("closing the state", function()
  -- R01, R03, R05: with each kind of operation under way.
  local cases = {
    reading = [[ vigil.spawn(b.read, b) vigil.suspend() ]],
    writing = [[ vigil.spawn(a.write, a, ("x"):rep(1e7)) vigil.suspend() ]],
    queued = [[ a:setoption("high_water", 1e8) a:write(("x"):rep(1e7)) ]],
    flushing = [[ a:setoption("high_water", 1e8) a:write(("x"):rep(1e7)) a:close() ]],
    shutting = [[ vigil.spawn(a.shutdown, a) vigil.suspend() ]],
    aborted = [[ vigil.spawn(b.read, b) vigil.suspend() b:abort() a:close() ]],
    buffered = [[ a:write("x") b:read(2, 0.001) ]],
    dropped = [[ a = nil ]],
  }
  for name, code in pairs(cases) do
    it("with one " .. name .. ": quiet (R01, R03)", function()
      for _, leave in ipairs { "os.exit(9, true)", "os.exit(9, false)" } do
        local status, out, err = helper.run_script([[
          local vigil = require "vigil"
          vigil.run(function()
            local a, b = assert(vigil.pipe.pair())
            ]] .. code .. [[
            KEEP = { a, b }
            ]] .. leave .. [[
          end)
        ]])
        assert.equal(9, status, err)
        assert.equal("", out .. err)
      end
    end)
  end
end)
