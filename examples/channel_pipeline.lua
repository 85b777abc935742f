-- channel_pipeline.lua: stages connected by channels.  Each stage closes its
-- output when its input has ended; so the end travels down the pipeline.
--
-- Usage: lua5.4 examples/channel_pipeline.lua [TEXT]

local vigil = require "vigil"

local TEXT = arg[1] or [[
the quick brown fox
jumps over the lazy dog
and the dog sleeps on]]

-- Runs fn(input, output) in a coroutine of its own; returns its output.
-- The capacity is how far a stage may be ahead of the next one.
local function stage(fn, input)
  local output = vigil.channel(4)
  vigil.spawn(function()
    fn(input, output)
    output:close()
  end)
  return output
end

local function lines(text, output)
  for line in text:gmatch "[^\n]+" do output:send(line) end
end

local function words(input, output)
  for line in input do
    for word in line:gmatch "%a+" do output:send(word) end
  end
end

local function count(input, output)
  local counts = {}
  for word in input do counts[word] = (counts[word] or 0) + 1 end
  local sorted = {}
  for word in pairs(counts) do sorted[#sorted + 1] = word end
  table.sort(sorted, function(a, b)
    return counts[a] > counts[b] or counts[a] == counts[b] and a < b
  end)
  for _, word in ipairs(sorted) do output:send { word, counts[word] } end
end

vigil.run(function()
  for entry in stage(count, stage(words, stage(lines, TEXT))) do
    if entry[2] > 1 then print(entry[1], entry[2]) end
  end
end)
