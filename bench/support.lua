-- What the Lua contenders share.  A workload is a table of contenders, each a
-- function of the sizes given on the command line:
--
--   lua5.4 bench/spawn.lua plain 1000000 1000
--
-- Results go to stdout as lines of a key and a number.

local build = os.getenv "VIGIL_BUILD" or "build"
package.path = "./lua/?.lua;./lua/?/init.lua;" .. package.path
package.cpath = ("%s/?.so;%s/bench/?.so;"):format(build, build)
  .. package.cpath

local support = {}

function support.report(key, value)
  print(("%s %.9g"):format(key, value))
end

-- Resident bytes of this process.  The kernel's exact sum where there is one:
-- VmRSS may lag by a page or two for each CPU and thread.
function support.resident()
  for _, name in ipairs { "smaps_rollup", "status" } do
    local file = io.open("/proc/self/" .. name)
    local text = file and file:read "a" or ""
    if file then file:close() end
    local kilobytes = text:match "Rss:%s+(%d+)" or text:match "VmRSS:%s+(%d+)"
    if kilobytes then return kilobytes * 1024 end
  end
  error "no /proc to read the memory from"
end

-- The contender that the command line names, and the sizes after it.
local function chosen(contenders)
  local sizes = {}
  for i = 2, #arg do sizes[i - 1] = assert(tonumber(arg[i])) end
  local contender = contenders[arg[1]]
  if not contender then error("no contender " .. tostring(arg[1])) end
  return contender, table.unpack(sizes)
end

function support.run(contenders)
  local function call(contender, ...) contender(...) end
  call(chosen(contenders))
end

-- Runs the contender first with a tenth of the work for warming up; then
-- reports how many times a second of CPU it did what it does n times.  A
-- contender returns how many times it did it.
function support.measure(contenders)
  local function measure(contender, n, ...)
    contender(n // 10, ...)
    local start = os.clock()
    local done = contender(n, ...)
    support.report("rate", n / (os.clock() - start))
    assert(done == n, "did " .. tostring(done) .. " instead of " .. n)
  end
  measure(chosen(contenders))
end

return support
