--- What the specs share: the tree on the paths, a run of vigil that must leave
-- nothing alive, and scripts in a process of their own.
--
-- busted loads this file before the specs (see .busted), so that what it
-- requires is loaded once: a Lua state has one vigil, and busted forgets what
-- a spec file has required when that file ends.

local lfs = require "lfs"

local helper = {}

local root = lfs.currentdir()
local build = os.getenv("VIGIL_BUILD") or "build"
local lua = os.getenv("LUA") or "lua5.4"
local gc_every = tonumber(os.getenv("VIGIL_GC_EVERY"))

package.path = root .. "/lua/?.lua;" .. root .. "/lua/?/init.lua;"
  .. root .. "/?.lua;" .. package.path
package.cpath = root .. "/" .. build .. "/?.so;" .. package.cpath

-- If that fails, each spec says why.
local _, vigil = pcall(require, "vigil")

helper.root = root
--- Whether the sanitizers look on: a spec that counts in millions may count
-- in thousands then.
helper.sanitized = lua:find("libasan", 1, true) ~= nil
--- Whether `make gc` collects all the time: the same, only more so.
helper.collecting = gc_every ~= nil


-- {== Nothing is left alive

--- What vigil has alive: { coroutines =, handles =, requests =, ... }
function helper.counts()
  return package.loaded["vigil.core"].counts()
end

local function difference(before, after)
  local more = {}
  for name, count in pairs(after) do
    if count > (before[name] or 0) then
      more[#more + 1] = ("%s: %d, before: %d"):format(name, count,
        before[name] or 0)
    end
  end
  table.sort(more)
  return more[1] and table.concat(more, "; ")
end

--- Fails if more is alive than there was in `before`, after full collections.
-- A handle closes in a later turn of the loop, and what it kept goes in the
-- collection after that: both get some time.  A lookup in the system's
-- resolver ends when it ends: it gets more.
function helper.check_nothing_left(before)
  local left
  local patience = vigil.now() + 10
  for round = 1, math.huge do
    collectgarbage()
    collectgarbage()
    left = difference(before, helper.counts())
    if not left then return end
    local waits = helper.counts().requests > (before.requests or 0)
    if round > 20 and (not waits or vigil.now() > patience) then break end
    vigil.run(vigil.sleep, 0.005)
  end
  error("left alive: " .. left .. "\n"
    .. package.loaded["vigil.core"].report(), 0)
end

local function body(fn, ...)
  if gc_every then require "gcstress"(gc_every) end
  return fn(...)
end

--- A function, for `it`, that runs fn in vigil.run and then checks that
-- nothing is left alive.
function helper.in_vigil(fn)
  return function(...)
    local before = helper.counts()
    local results = table.pack(vigil.run(body, fn, ...))
    helper.check_nothing_left(before)
    return table.unpack(results, 1, results.n)
  end
end

-- }==


-- {== Other processes

local function quote(text)
  return "'" .. tostring(text):gsub("'", "'\\''") .. "'"
end

local function write_file(name, text)
  local file = assert(io.open(name, "wb"))
  assert(file:write(text))
  assert(file:close())
end

local function take_file(name)
  local file = assert(io.open(name, "rb"))
  local text = file:read("a")
  file:close()
  os.remove(name)
  return text
end

-- The words of `env`.
local function environment(extra)
  local words = {
    "LUA_PATH_5_4=" .. quote(package.path),
    "LUA_CPATH_5_4=" .. quote(package.cpath),
  }
  for name, value in pairs(extra or {}) do
    if value then
      words[#words + 1] = name .. "=" .. quote(value)
    else
      table.insert(words, 1, "-u " .. name)
    end
  end
  return table.concat(words, " ")
end

--- Runs a script in a Lua of its own; returns its exit status (128 + n after
-- signal n, 124 or 137 when its time was up), stdout and stderr.
--
-- script: the name of a .lua file, or code.
-- options, all optional:
--   args     a list of arguments
--   env      variables; false: unset
--   input    what it reads from stdin (nothing)
--   cwd      where it runs (here)
--   files    how many descriptors it may have open
--   timeout  seconds (20; ten times that under the sanitizers)
--   name     what stands for the code's file name in its messages
function helper.run_script(script, options)
  options = options or {}
  local out, err, input = os.tmpname(), os.tmpname(), os.tmpname()
  local file, temporary = script, nil
  if not script:find("^[^\n]+%.lua$") then
    temporary = os.tmpname()
    file = temporary
    write_file(file, script)
  elseif file:sub(1, 1) ~= "/" then
    file = root .. "/" .. file
  end
  write_file(input, options.input or "")

  local words = {}
  if options.cwd then words[1] = "cd " .. quote(options.cwd) .. " &&" end
  if options.files then
    words[#words + 1] = ("ulimit -n %d &&"):format(options.files)
  end
  words[#words + 1] = "env " .. environment(options.env) .. " timeout -k 5"
  words[#words + 1] = (options.timeout or 20) * (helper.sanitized and 10 or 1)
  words[#words + 1] = lua .. " " .. quote(file)
  for _, arg in ipairs(options.args or {}) do
    words[#words + 1] = quote(arg)
  end
  words[#words + 1] = ("<%s >%s 2>%s"):format(input, out, err)
  local _, how, status = os.execute(table.concat(words, " "))
  if how == "signal" then status = 128 + status end

  local stdout, stderr = take_file(out), take_file(err)
  os.remove(input)
  if temporary then
    os.remove(temporary)
    if options.name then
      local pattern = temporary:gsub("%p", "%%%0")
      local name = options.name:gsub("%%", "%%%%")
      stdout, stderr = stdout:gsub(pattern, name), stderr:gsub(pattern, name)
    end
  end
  if helper.sanitized and status == 99 then
    error("the sanitizers object (see also the reports at the end)\n" .. stderr)
  end
  return status, stdout, stderr
end

-- }==

package.loaded["spec.helper"] = helper
return helper
