-- Builds the yardsticks, runs the workloads and prints what came of it.  From
-- the root of the tree, after `make`:
--
--   lua5.4 bench/run.lua [WORKLOAD...]        (make bench ARGS="...")
--
-- README.md beside this file says what is measured, and lists the sizes that
-- can be set in the environment.

local workloads = dofile "bench/workloads.lua"

local LUA = os.getenv "LUA" or "lua5.4"
local BUILD = os.getenv "VIGIL_BUILD" or "build"
local STDERR = BUILD .. "/bench/stderr"

local function printf(...) print(string.format(...)) end

local function say(...) io.stderr:write(string.format(...)) end

-- The output of a command, or nil and what it said instead.
local function capture(command)
  local pipe <close> = assert(io.popen(command .. " 2>" .. STDERR))
  local output = pipe:read "a"
  if pipe:close() then return output end
  local complaints <close> = assert(io.open(STDERR))
  return nil, complaints:read "l" or "no word of why"
end

local function succeeds(command)
  return os.execute(command .. " >/dev/null 2>&1") == true
end

local function first_line(command)
  return (capture(command) or ""):match "[^\n]+" or "?"
end

-- What is installed.

local installed = {
  luv = succeeds(LUA .. " -e 'require [[luv]]'"),
  cqueues = succeeds(LUA .. " -e 'require [[cqueues]]'"),
  go = succeeds "go version",
  node = succeeds "node --version",
}

-- The server or program measured on one core, the load on another.
local pinned = succeeds "taskset -c 0 true" and succeeds "taskset -c 1 true"
local limited = succeeds "timeout 1 true"

local function pin(core, command)
  if not pinned then return command end
  return ("taskset -c %d %s"):format(core, command)
end

-- The yardsticks.

local function pkg_config(what, ...)
  for _, name in ipairs { ... } do
    local flags = capture(("pkg-config --%s %s"):format(what, name))
    if flags then return (flags:gsub("%s+$", "")) end
  end
  return ""
end

local function build(command)
  local output, complaint = capture(command)
  if not output then say("%s\n%s\n", command, complaint) end
  return output ~= nil
end

local function build_c()
  local cc = (os.getenv "CC" or "cc") .. " -std=c11 -D_GNU_SOURCE -O2"
  local uv = pkg_config("cflags", "libuv")
  local libs = pkg_config("libs", "libuv")
  local good = true
  for _, name in ipairs { "echo", "sleepers", "load" } do
    good = good and build(("%s %s -o %s/bench/%s bench/%s.c %s"):format(
      cc, uv, BUILD, name, name, libs == "" and "-luv" or libs))
  end
  return good and build(
    ("%s %s -fPIC -shared -o %s/bench/yardstick.so bench/yardstick.c"):format(
      cc, pkg_config("cflags", "lua5.4", "lua"), BUILD))
end

local function build_go()
  local good = true
  for _, name in ipairs { "spawn", "spawn_await", "switch", "sleepers",
                          "channel_unbuffered", "channel_buffered", "echo" } do
    good = good and build(
      ("go build -o %s/bench/%s_go bench/%s.go bench/support.go"):format(
        BUILD, name, name))
  end
  return good
end

-- Runs.

local function command_of(workload, contender)
  local command = contender.command .. " "
    .. table.concat(workload.arguments, " ")
  command = pin(0, command)
  if workload.load then
    command = pin(1, workload.load .. " " .. command)
  end
  return limited and "timeout 120 " .. command or command
end

-- What one run reports, by key; or nil and what went wrong.
local function try(workload, contender)
  if contender.needs and not installed[contender.needs] then
    return nil, "not installed"
  end
  local output, complaint = capture(command_of(workload, contender))
  if not output then return nil, "failed: " .. complaint end
  local values = {}
  for key, value in output:gmatch "(%w+) (%S+)\n" do
    values[key] = tonumber(value)
  end
  if workload.load then values.busy = values.rate * values.cpu / 1e6 end
  return values
end

-- Real time is worth nothing where something else had the CPU.
local function disturbed(values)
  return values.waited and values.waited > 0.05
end

-- One run in one round; again, a few times, if it was disturbed.  What it
-- reports goes to samples[key][round].
local function run(workload, contender, results, round)
  local samples = results[contender.label]
  if samples.trouble then return end
  local values, trouble = try(workload, contender)
  for _ = 1, workloads.retries do
    if not values or not disturbed(values) then break end
    say "."
    values, trouble = try(workload, contender)
  end
  if not values then
    samples.trouble = trouble
    return
  end
  if disturbed(values) then
    results.disturbed = results.disturbed + 1
    samples.disturbed = true
    values = { idle = values.idle }
  end
  for key, value in pairs(values) do
    samples[key] = samples[key] or {}
    samples[key][round] = value
  end
end

local function measure(workload)
  local results = { disturbed = 0 }
  for _, contender in ipairs(workload.contenders) do
    results[contender.label] = {}
  end
  say("%s: round", workload.name)
  for round = 1, workloads.rounds do
    say(" %d", round)
    -- Another one begins each round: on a virtual machine, the first to touch
    -- much memory waits for the host to find it.
    local contenders = workload.contenders
    for i = 0, #contenders - 1 do
      local contender = contenders[(round - 1 + i) % #contenders + 1]
      run(workload, contender, results, round)
    end
  end
  say "\n"
  return results
end

-- Statistics.  Samples are by round; rounds that were disturbed are missing.

-- Median, least and most; nil if there are no samples.
local function spread(samples)
  local s = {}
  for _, value in pairs(samples) do s[#s + 1] = value end
  table.sort(s)
  local n = #s
  if n == 0 then return nil end
  return (s[(n + 1) // 2] + s[n // 2 + 1]) / 2, s[1], s[n]
end

-- One's values over another's, in the rounds that have both.
local function ratios(mine, theirs)
  local list = {}
  for round, value in pairs(mine) do
    if theirs[round] then list[round] = value / theirs[round] end
  end
  return list
end

-- Tables.

local function number(value)
  if math.abs(value) >= 100 then return ("%.0f"):format(value) end
  return (value < 10 and "%.2f" or "%.1f"):format(value)
end

local function cell(samples, metric)
  local median, least, most = spread(samples[metric.key] or {})
  if not median then return samples.disturbed and "disturbed" or "" end
  return ("%s ±%.0f%%"):format(number(median * (metric.scale or 1)),
    50 * (most - least) / median)
end

-- Columns are padded by what is seen of them, not by bytes.
local function pad(text, width, left)
  local space = (" "):rep(width - utf8.len(text))
  return left and text .. space or space .. text
end

local function print_table(rows)
  local widths = {}
  for _, row in ipairs(rows) do
    for i, text in ipairs(row) do
      widths[i] = math.max(widths[i] or 3, utf8.len(text))
    end
  end
  for r, row in ipairs(rows) do
    local line, rule = {}, {}
    for i, text in ipairs(row) do
      line[i] = pad(text, widths[i], i == 1)
      rule[i] = i == 1 and ("-"):rep(widths[i])
        or ("-"):rep(widths[i] - 1) .. ":"
    end
    printf("| %s |", table.concat(line, " | "))
    if r == 1 then printf("| %s |", table.concat(rule, " | ")) end
  end
end

-- Contenders that are the limit of one of the targets.
local function limits_of(workload)
  local limits = {}
  for _, target in ipairs(workload.targets) do
    if target.of and not target.rival then limits[target.of] = target.key end
  end
  return limits
end

local function print_results(workload, results)
  local limits = limits_of(workload)
  local head = { workload.name }
  for _, metric in ipairs(workload.metrics) do
    table.insert(head, metric.title)
  end
  local rows = { head }
  for _, contender in ipairs(workload.contenders) do
    local label = contender.label
    local samples = results[label]
    local row = { label .. (limits[label] and " (limit)" or "") }
    for i, metric in ipairs(workload.metrics) do
      row[i + 1] = cell(samples, metric)
    end
    if samples.trouble then row[2] = samples.trouble:match "^[^:]+" end
    rows[#rows + 1] = row
  end
  print_table(rows)
  print()
  for _, contender in ipairs(workload.contenders) do
    local trouble = results[contender.label].trouble
    if trouble then printf("- %s: %s", contender.label, trouble) end
  end
  if results.disturbed > 0 then
    printf("- disturbed by other programs, and not counted: %d of %d runs",
      results.disturbed, workloads.rounds * #workload.contenders)
  end
end

-- Targets.

local function title_of(workload, key)
  for _, metric in ipairs(workload.metrics) do
    if metric.key == key then return metric.title end
  end
end

-- What must hold, as text.
local function promise(workload, target)
  local word = target.least and "at least" or "at most"
  local bound = target.least or target.most
  local title = title_of(workload, target.key)
  if target.rival then return ("%s: ahead of %s"):format(title, target.of) end
  if not target.of then return ("%s: %s %g"):format(title, word, bound) end
  return ("%s: %s %g× %s"):format(title, word, bound, target.of)
end

-- How it came out, as text, and whether it holds; nil if nobody knows.
local function outcome(target, results)
  local vigil, other = results.vigil, target.of and results[target.of]
  if vigil.trouble then return "not measured: no vigil" end
  if other and other.trouble then return "not measured: no " .. target.of end
  local samples = vigil[target.key] or {}
  if other then samples = ratios(samples, other[target.key] or {}) end
  local median, least, most = spread(samples)
  if not median then return "not measured: disturbed" end
  local function holds(value)
    if target.least then return value >= target.least end
    return value <= target.most
  end
  local met = holds(median)
  local verdict = met and "met" or "MISSED"
  if holds(least) ~= holds(most) then
    verdict = verdict .. ", but not in every round"
    if not met then verdict = "MISSED, but for some of the rounds" end
  end
  local unit = other and "×" or ""
  return ("%s%s (%s to %s): %s"):format(number(median), unit, number(least),
    number(most), verdict), met
end

local function print_targets(workload, results, tally)
  for _, target in ipairs(workload.targets) do
    local text, met = outcome(target, results)
    printf("- %s: %s", promise(workload, target), text)
    local key = met and "met" or met == false and "missed" or "unknown"
    tally[key] = tally[key] + 1
    if not met then
      table.insert(tally, ("%s, %s: %s"):format(workload.name,
        promise(workload, target), text))
    end
  end
end

-- The machine.

local function field(file, pattern)
  local handle = io.open(file)
  local text = handle and handle:read "a" or ""
  if handle then handle:close() end
  return text:match(pattern) or "?"
end

local function print_machine()
  printf("- %s, %s, %s", field("/proc/cpuinfo", "model name%s*:%s*([^\n]+)"),
    first_line "getconf _NPROCESSORS_ONLN" .. " CPUs",
    first_line "uname -srm")
  printf("- %s, libuv %s", first_line(LUA .. " -v"):match "Lua [%d.]+",
    pkg_config("modversion", "libuv"))
  for _, name in ipairs { "luv", "cqueues", "go", "node" } do
    if not installed[name] then printf("- %s: not installed", name) end
  end
  if installed.go then
    printf("- %s", first_line "go version":match "go version (%S+)")
  end
  if installed.node then
    printf("- Node.js %s", first_line "node --version")
  end
  printf("- %s", pinned and "pinned: core 0 measures, core 1 makes the load"
    or "not pinned: no taskset, or no second core")
  printf("- load average before: %s", field("/proc/loadavg", "^(%S+)"))
  printf("- %d rounds; each value is the median, ± half the range; ratios "
    .. "are of rounds", workloads.rounds)
end

local function chosen()
  local wanted, list = {}, {}
  for _, name in ipairs(arg) do wanted[name] = true end
  for _, workload in ipairs(workloads) do
    if #arg == 0 or wanted[workload.name] then
      list[#list + 1] = workload
      wanted[workload.name] = nil
    end
  end
  local unknown = next(wanted)
  if unknown then
    say("no workload %s; there are:", unknown)
    for _, workload in ipairs(workloads) do say(" %s", workload.name) end
    say "\n"
    os.exit(2)
  end
  return list
end

local function main()
  local list = chosen()
  os.execute(("mkdir -p %s/bench"):format(BUILD))
  if not build_c() then os.exit(1) end
  installed.go = installed.go and build_go()
  print_machine()

  local tally = { met = 0, missed = 0, unknown = 0 }
  for _, workload in ipairs(list) do
    local results = measure(workload)
    printf("\n### %s\n", workload.title)
    print_results(workload, results)
    print_targets(workload, results, tally)
  end
  printf("\nTargets: %d met, %d missed, %d not measured", tally.met,
    tally.missed, tally.unknown)
  for _, line in ipairs(tally) do printf("- %s", line) end
end

main()
