-- What is measured: sizes, contenders, metrics and targets of each workload.
-- run.lua says how.

local quick = os.getenv "BENCH_QUICK" == "1"

-- A size, from the environment or one of the two defaults.
local function size(name, full, short)
  local value = os.getenv("BENCH_" .. name)
  if value and value ~= "" then
    return tonumber(value) or error("BENCH_" .. name .. " is no number")
  end
  return quick and short or full
end

-- Contenders.  `needs` names what must be installed.

local LUA = os.getenv "LUA" or "lua5.4"
local BUILD = os.getenv "VIGIL_BUILD" or "build"

local function lua(label, file, name, needs)
  local command = ("%s bench/%s.lua %s"):format(LUA, file, name)
  return { label = label, command = command, needs = needs }
end

local function native(label, file)
  return { label = label, command = ("%s/bench/%s"):format(BUILD, file) }
end

local function go(label, file)
  local command = ("%s/bench/%s_go"):format(BUILD, file)
  return { label = label, command = command, needs = "go" }
end

local function node(label, file)
  return { label = label, command = ("node bench/%s.js"):format(file),
           needs = "node" }
end

-- Metrics: the key that contenders report, a title, and what to multiply by.

local function rate(title, scale)
  return { key = "rate", title = title, scale = scale }
end

local millions = rate("M/s", 1e-6)
local cpu = { key = "cpu", title = "CPU µs each" }

local function thousands(n)
  local text = ("%d"):format(n):reverse():gsub("%d%d%d", "%0,"):reverse()
  return (text:gsub("^,", ""))
end

-- Targets: the metric `key` of vigil is `least` or `most` times that of the
-- contender labelled `of`; without one, an absolute bound.

local workloads = {
  rounds = size("ROUNDS", 5, 3),
  retries = size("RETRIES", 2, 2), -- of a run that was disturbed
}

local function add(workload)
  workloads[#workloads + 1] = workload
end

local alive = size("ALIVE", 1000, 1000)
local spawns = size("SPAWN", 1000000, 200000)
local limit = "coroutine.wrap(f)(), as many alive"
add {
  name = "spawn",
  title = ("Spawn and forget %s coroutines, %s alive at a time"):format(
    thousands(spawns), thousands(alive)),
  arguments = { spawns, alive },
  contenders = {
    lua("vigil", "spawn", "vigil"),
    lua(limit, "spawn", "plain"),
    lua("coroutine.wrap(f)(), no other alive", "spawn", "plain_alone"),
    lua("coroutine.wrap(f), run later", "spawn", "plain_later"),
    lua("C, recycled threads", "spawn", "recycled"),
    lua("cqueues", "spawn", "cqueues", "cqueues"),
    go("Go", "spawn"),
    node("Node.js", "spawn"),
  },
  metrics = { millions },
  targets = { { key = "rate", of = limit, least = 1.0 } },
}

local batches = { size("BATCH", 1000, 1000), 1 }
for _, batch in ipairs(batches) do
  local n = size("SPAWN_AWAIT", 1000000, 200000)
  add {
    name = batch == 1 and "spawn_await_one" or "spawn_await",
    title = batch == 1
      and ("Spawn and await, one at a time, %s times"):format(thousands(n))
      or ("Spawn %s, then await each; %s in all"):format(
        thousands(batch), thousands(n)),
    arguments = { n, batch },
    contenders = {
      lua("vigil", "spawn_await", "vigil"),
      lua("plain Lua scheduler", "spawn_await", "plain"),
      lua("plain Lua, no scheduler", "spawn_await", "bare"),
      go("Go", "spawn_await"),
      node("Node.js", "spawn_await"),
    },
    metrics = { millions },
    targets = { { key = "rate", of = "plain Lua scheduler", least = 1.3 } },
  }
end

local switches = size("SWITCH", 5000000, 1000000)
add {
  name = "switch",
  title = ("%s switches between two coroutines"):format(thousands(switches)),
  arguments = { switches },
  contenders = {
    lua("vigil", "switch", "vigil"),
    lua("plain resume and yield", "switch", "plain"),
    lua("C, resume and yield", "switch", "from_c"),
    lua("cqueues", "switch", "cqueues", "cqueues"),
    go("Go", "switch"),
  },
  metrics = { millions },
  targets = { { key = "rate", of = "plain resume and yield", least = 1.35 } },
}

local trips = size("CHANNEL_UNBUFFERED", 1000000, 200000)
add {
  name = "channel_unbuffered",
  title = ("%s round trips over two unbuffered channels"):format(
    thousands(trips)),
  arguments = { trips },
  contenders = {
    lua("vigil", "channel_unbuffered", "vigil"),
    lua("plain, direct", "channel_unbuffered", "plain"),
    lua("cqueues", "channel_unbuffered", "cqueues", "cqueues"),
    go("Go", "channel_unbuffered"),
  },
  metrics = { millions },
  targets = {
    { key = "rate", of = "plain, direct", least = 0.58 },
    { key = "rate", of = "Go", least = 1, rival = true },
  },
}

local messages = size("CHANNEL_BUFFERED", 4000000, 1000000)
local capacity = size("CAPACITY", 1024, 1024)
add {
  name = "channel_buffered",
  title = ("%s messages over a channel with a buffer of %s"):format(
    thousands(messages), thousands(capacity)),
  arguments = { messages, capacity },
  contenders = {
    lua("vigil", "channel_buffered", "vigil"),
    lua("plain Lua scheduler", "channel_buffered", "plain"),
    lua("plain Lua, only the ring", "channel_buffered", "bare"),
    go("Go", "channel_buffered"),
  },
  metrics = { millions },
  targets = { { key = "rate", of = "plain Lua scheduler", least = 0.9 } },
}

-- They must all be asleep before the first wakes: seconds for a million.
local sleep = size("SLEEP", 10, 8)
local sleepers = { size("SLEEPERS", 100000, 100000) }
sleepers[2] = size("SLEEPERS_MANY", 1000000, 0)
for i, n in ipairs(sleepers) do
  if n > 0 then
    add {
      name = i == 1 and "sleepers" or "sleepers_many",
      title = ("%s coroutines asleep at once"):format(thousands(n)),
      arguments = { n, ("%.2f"):format(0.2 + sleep * n / 1e6) },
      contenders = {
        lua("vigil", "sleepers", "vigil"),
        lua("suspended plain coroutine", "sleepers", "plain"),
        native("C, libuv timers", "sleepers"),
        lua("luv with coroutines", "sleepers", "luv", "luv"),
        lua("cqueues", "sleepers", "cqueues", "cqueues"),
        go("Go", "sleepers"),
      },
      metrics = {
        { key = "bytes", title = "bytes each" },
        { key = "lua", title = "of them Lua's" },
        cpu,
      },
      targets = {
        { key = "bytes", of = "suspended plain coroutine", most = 1.3 },
        { key = "cpu", of = "C, libuv timers", most = 2.2 },
      },
    }
  end
end

local servers = {
  lua("vigil", "echo", "vigil"),
  native("C on libuv", "echo"),
  lua("luv callbacks", "echo", "luv_callbacks", "luv"),
  lua("luv with coroutines", "echo", "luv_coroutines", "luv"),
  lua("cqueues", "echo", "cqueues", "cqueues"),
  go("Go", "echo"),
  node("Node.js", "echo"),
}
local backlog = size("BACKLOG", 4096, 4096)
local seconds = size("SECONDS", 2, 0.5)
local bytes = size("MESSAGE", 64, 64)
local network = {
  rate("k msg/s", 1e-3),
  { key = "p50", title = "p50 µs" },
  { key = "p99", title = "p99 µs" },
  cpu,
  { key = "busy", title = "server busy", scale = 100 },
}

local function add_network(name, title, active, idle, metrics, targets)
  add {
    name = name,
    title = title,
    arguments = { backlog },
    load = ("%s/bench/load -c %d -i %d -s %d -t %g"):format(
      BUILD, active, idle, bytes, seconds),
    contenders = servers,
    metrics = metrics,
    targets = targets,
  }
end

local echo_targets = {
  { key = "rate", of = "C on libuv", least = 0.95 },
  { key = "p99", of = "C on libuv", most = 1.0 },
}
for _, server in ipairs(servers) do
  if server.label ~= "vigil" and server.label ~= "C on libuv" then
    table.insert(echo_targets,
      { key = "rate", of = server.label, least = 1, rival = true })
  end
end

local connections = { size("CONNECTIONS", 64, 64),
                      size("CONNECTIONS_MANY", 1000, 1000) }
for i, n in ipairs(connections) do
  add_network(i == 1 and "echo" or "echo_many",
    ("TCP echo, %d-byte messages, %s connections"):format(bytes, thousands(n)),
    n, 0, network, echo_targets)
end

local idle = size("IDLE", 9900, 9900)
local active = size("ACTIVE", 64, 64)
add_network("idle",
  ("%s idle connections with a waiting coroutine each, %s active"):format(
    thousands(idle), thousands(active)),
  active, idle,
  { { key = "idle", title = "bytes per idle" }, table.unpack(network) },
  {
    { key = "idle", most = 2560 },
    { key = "rate", of = "C on libuv", least = 0.90 },
  })

return workloads
