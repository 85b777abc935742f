-- One coroutine sends n messages to another over a channel with a buffer.

local support = dofile "bench/support.lua"
local contenders = {}

function contenders.vigil(n, capacity)
  local vigil = require "vigil"
  local count = 0
  vigil.run(function()
    local channel = vigil.channel(capacity)
    vigil.spawn(function()
      for i = 1, n do channel:send(i) end
      channel:close()
    end)
    for _ in channel do count = count + 1 end
  end)
  return count
end

-- The limit: a channel and a scheduler in plain Lua, as small as they can be
-- for any number of channels and coroutines.
function contenders.plain(n, buffer)
  local resume, yield, running = coroutine.resume, coroutine.yield,
    coroutine.running
  local queue, first, last = {}, 1, 0

  local function ready(co)
    last = last + 1
    queue[last] = co
  end

  local function wake(list)
    ready(table.remove(list, 1))
  end

  local function wait(list)
    list[#list + 1] = running()
    yield()
  end

  local Channel = {}
  Channel.__index = Channel

  function Channel:send(value)
    while self.size == self.capacity do wait(self.senders) end
    local size, capacity = self.size, self.capacity
    local tail = self.head + size
    if tail > capacity then tail = tail - capacity end
    self.ring[tail] = value
    self.size = size + 1
    if self.receivers[1] then wake(self.receivers) end
  end

  function Channel:recv()
    while self.size == 0 do
      if self.closed then return nil end
      wait(self.receivers)
    end
    local head = self.head
    local value = self.ring[head]
    self.ring[head] = false
    self.head = head < self.capacity and head + 1 or 1
    self.size = self.size - 1
    if self.senders[1] then wake(self.senders) end
    return value
  end

  function Channel:close()
    self.closed = true
    if self.receivers[1] then wake(self.receivers) end
  end

  local channel = setmetatable({
    capacity = buffer, ring = {}, head = 1, size = 0,
    senders = {}, receivers = {},
  }, Channel)
  local count = 0
  ready(coroutine.create(function()
    for i = 1, n do channel:send(i) end
    channel:close()
  end))
  ready(coroutine.create(function()
    while channel:recv() do count = count + 1 end
  end))
  while first <= last do
    local co = queue[first]
    queue[first] = nil
    first = first + 1
    assert(resume(co))
  end
  return count
end

-- The ring alone, in upvalues, and two coroutines that are resumed in turn
-- until both have ended.  Shown to say what the rest costs.
function contenders.bare(n, capacity)
  local resume, yield = coroutine.resume, coroutine.yield
  local ring, head, size = {}, 1, 0
  local count = 0

  local function send(value)
    while size == capacity do yield() end
    local tail = head + size
    if tail > capacity then tail = tail - capacity end
    ring[tail] = value
    size = size + 1
  end

  local function recv()
    while size == 0 do yield() end
    local value = ring[head]
    head = head < capacity and head + 1 or 1
    size = size - 1
    return value
  end

  local producer = coroutine.create(function()
    for i = 1, n do send(i) end
  end)
  local consumer = coroutine.create(function()
    for i = 1, n do
      if recv() == i then count = count + 1 end
    end
  end)
  while count < n do
    resume(producer)
    resume(consumer)
  end
  return count
end

support.measure(contenders)
