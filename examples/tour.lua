-- tour.lua: a line server, a crowd of clients and a pipeline, all at once in
-- one process; every result is checked.  This is what `make run` runs.
--
-- Usage: lua5.4 examples/tour.lua [CLIENTS [MESSAGES]]     (1000, 100)
--
-- Exit status: 0 if every check held, 1 if one did not, 130 after Ctrl-C,
-- which stops the tour and still prints what was done until then.

local vigil = require "vigil"

local CLIENTS = math.tointeger(arg[1] or 1000) or error "CLIENTS: a number"
local MESSAGES = math.tointeger(arg[2] or 100) or error "MESSAGES: a number"
local READERS = 8 -- files that the pipeline works on at a time

local tour = {
  connected = 0, -- clients that have a connection
  served = 0, -- connections that the server has now
  most_served = 0,
  requests = 0, -- lines that the server has read
  answers = 0, -- answers that were as expected
  latencies = {}, -- of each answer, in seconds
  files = 0, -- what the pipeline has counted so far
  words = 0,
  problems = {}, -- checks that did not hold
}

local function check(condition, text, ...)
  if not condition then
    table.insert(tour.problems, text:format(...))
  end
  return condition
end

local function printf(text, ...) print(text:format(...)) end


-- {== The line server: answers each line with the line turned round, and its
-- length.

local function answer_to(line)
  return ("%s %d"):format(line:reverse(), #line)
end

local function serve_client(conn)
  tour.served = tour.served + 1
  tour.most_served = math.max(tour.most_served, tour.served)
  while true do
    local line = conn:read "line"
    if not line then break end
    tour.requests = tour.requests + 1
    if not conn:write(answer_to(line) .. "\n") then break end
  end
  tour.served = tour.served - 1
end

-- }==


-- {== The clients: all connect, then all start together.

local function converse(conn, id)
  for i = 1, MESSAGES do
    local line = ("client %d, message %d of %d"):format(id, i, MESSAGES)
    local sent_at = vigil.now()
    assert(conn:write(line .. "\n"))
    local answer, err = conn:read("line", 30)
    if answer ~= answer_to(line) then
      error(("the answer to '%s' is %s"):format(line,
        answer or err or "missing: end of input"), 0)
    end
    tour.answers = tour.answers + 1
    tour.latencies[tour.answers] = vigil.now() - sent_at
  end
end

local function run_clients(server)
  local host, port = server:sockname()
  local everyone_is_there, start = vigil.future()
  local missing = CLIENTS

  local function arrive()
    missing = missing - 1
    if missing == 0 then
      tour.started_at = vigil.now()
      start:complete()
    end
  end

  local ids = {}
  for id = 1, CLIENTS do ids[id] = id end
  vigil.iterate(ids, function(id)
    local conn, err = vigil.tcp.connect(host, port, 30)
    arrive()
    if not check(conn, "client %d: %s", id, err) then return end
    local _ <close> = conn
    tour.connected = tour.connected + 1
    vigil.await(everyone_is_there)
    local ok, failure = vigil.pcall(converse, conn, id)
    check(ok, "client %d: %s", id, failure)
  end)
  tour.ended_at = vigil.now()
end

-- }==


-- {== The pipeline: paths -> READERS coroutines -> counts -> one sum.  Reading
-- a file here blocks for as long as the disk takes; so the readers let the
-- others run after each.

local function count_words(path)
  local file = assert(io.open(path, "rb"))
  local text = file:read "a"
  file:close()
  if text:find("\0", 1, true) then return nil end -- not a text
  local _, count = text:gsub("%S+", "")
  return count
end

local function run_pipeline(paths)
  local queue <close> = vigil.channel(READERS)
  local counts <close> = vigil.channel(READERS)

  local function read_files()
    for path in queue do
      counts:send { path = path, words = count_words(path) }
      vigil.suspend()
    end
  end

  local stages = {}
  for i = 1, READERS do stages[i] = vigil.spawn(read_files) end
  local _ <close> = vigil.spawn(function()
    for _, path in ipairs(paths) do queue:send(path) end
    queue:close()
  end)
  local closer <close> = vigil.spawn(function()
    vigil.await_all_or_fail(stages)
    counts:close()
  end)

  tour.counted = {}
  for count in counts do
    if count.words then
      tour.files = tour.files + 1
      tour.words = tour.words + count.words
      tour.counted[count.path] = count.words
    end
  end
  vigil.await(closer)
end

-- The same count, without any of this.
local function verify_words(paths)
  local files, words = 0, 0
  for _, path in ipairs(paths) do
    local count = count_words(path)
    check(tour.counted[path] == count, "%s: %s words, not %s", path, count,
      tour.counted[path])
    if count then files, words = files + 1, words + count end
  end
  check(files == tour.files and words == tour.words,
    "the pipeline counted %d words in %d files, not %d in %d",
    tour.words, tour.files, words, files)
end

local function source_files()
  local root = arg[0]:match "^(.*)/examples/[^/]*$" or "."
  local paths = {}
  local find = assert(io.popen(("find '%s' -type f ! -path '*/.*/*' "
    .. "! -path '%s/build/*' 2>/dev/null"):format(root, root)))
  for path in find:lines() do table.insert(paths, path) end
  find:close()
  return paths
end

-- }==


-- {== What is printed

local function show_progress()
  local ticker <close> = vigil.timer(0.1, 0.1)
  while true do
    vigil.await(ticker)
    io.stderr:write(("\r\27[K%d connections, %d of %d answers, %d words")
      :format(tour.served, tour.answers, CLIENTS * MESSAGES, tour.words))
  end
end

local function percentile(sorted, p)
  return 1e3 * (sorted[math.max(1, math.ceil(#sorted * p / 100))] or 0)
end

local function peak_memory()
  local status = io.open "/proc/self/status"
  local kib = status and status:read("a"):match "VmHWM:%s*(%d+) kB"
  if status then status:close() end
  return kib and ("%.1f MiB"):format(kib / 1024) or "not known here"
end

local function summarize()
  table.sort(tour.latencies)
  local now = vigil.now()
  local seconds = (tour.ended_at or now) - (tour.started_at or now)
  printf("clients      %d connected, %d at once", tour.connected,
    tour.most_served)
  printf("answers      %d of %d as expected", tour.answers,
    CLIENTS * MESSAGES)
  if seconds > 0 then
    printf("rate         %.0f messages per second", tour.answers / seconds)
    printf("latency      p50 %.2f ms, p99 %.2f ms",
      percentile(tour.latencies, 50), percentile(tour.latencies, 99))
  end
  printf("pipeline     %d words in %d files", tour.words, tour.files)
  printf("peak memory  %s", peak_memory())
end

-- }==


-- Each client takes two descriptors, since the server is in here, too.
local function fit_descriptors()
  local pipe = io.popen "ulimit -n"
  local limit = pipe and math.tointeger(tonumber(pipe:read "l"))
  if pipe then pipe:close() end
  if not limit then return end -- "unlimited", or not known
  local most = math.max(1, (limit - 50) // 2)
  if CLIENTS > most then
    printf("note: ulimit -n is %d, so %d clients instead of %d", limit, most,
      CLIENTS)
    CLIENTS = most
  end
end

local function work(paths)
  local server <close> = assert(vigil.tcp.listen("127.0.0.1", 0,
    { backlog = 1024 }))
  local serving <close> = vigil.spawn(server.serve, server, serve_client)
  local pipeline <close> = vigil.spawn(run_pipeline, paths)
  run_clients(server)
  vigil.await(pipeline)
  server:close()
  vigil.await(serving)
end

local function main()
  fit_descriptors()
  local paths = source_files()
  local interrupt <close> = assert(vigil.signal "INT")
  local on_terminal = os.execute "[ -t 2 ]"
  local progress = on_terminal and vigil.spawn(show_progress)
  local working <close> = vigil.spawn(work, paths)

  local index, _, err = vigil.select { working, interrupt }
  if progress then
    progress:cancel()
    io.stderr:write "\r\27[K"
  end
  if index == 2 then
    working:cancel "interrupted"
    vigil.pawait(working)
    print "interrupted; until then:"
    summarize()
    return 130
  end

  check(not err, "%s", err)
  check(tour.answers == CLIENTS * MESSAGES, "%d answers are missing",
    CLIENTS * MESSAGES - tour.answers)
  check(tour.requests == tour.answers, "the server read %d lines",
    tour.requests)
  check(tour.most_served == CLIENTS, "only %d clients at once",
    tour.most_served)
  check(tour.served == 0, "%d connections are still open", tour.served)
  verify_words(paths)
  summarize()
  for i, problem in ipairs(tour.problems) do
    if i > 10 then
      printf("FAILED       and %d more", #tour.problems - 10)
      break
    end
    printf("FAILED       %s", problem)
  end
  if #tour.problems == 0 then print "every check held" end
  return #tour.problems == 0 and 0 or 1
end

os.exit(vigil.run(main), true)
