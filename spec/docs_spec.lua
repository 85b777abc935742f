-- Every Lua example of the documentation runs, in a process of its own.
--
-- A comment above the block says where that is not all:
--   <!-- no-run: reason -->  it is compiled only
--   <!-- output: text -->    it must print exactly that (the text may have
--                            several lines, from the one after "output:" on)

local lfs = require "lfs"
local helper = require "spec.helper"

-- README.md, then every .md file below docs/.
local function documents()
  local found = {}
  local function visit(dir)
    for name in lfs.dir(dir) do
      local path = dir .. "/" .. name
      local is_directory = lfs.attributes(path, "mode") == "directory"
      if is_directory and name:sub(1, 1) ~= "." then
        visit(path)
      elseif name:find("%.md$") then
        found[#found + 1] = path
      end
    end
  end
  if lfs.attributes("docs", "mode") == "directory" then visit("docs") end
  table.sort(found)
  table.insert(found, 1, "README.md")
  return found
end

local function trim(text)
  return (text:gsub("^%s+", ""):gsub("%s+$", ""))
end

-- The comment that ends just above a block, given all the text above it.
local function directive(above)
  local comment = above:match(".*<!%-%-(.-)%-%->%s*$")
  if not comment then return nil end
  local name, text = comment:match("^%s*([%w-]+):(.*)$")
  return name, text and trim(text)
end

-- The ```lua blocks of a text: { line =, code =, directive =, text = }, where
-- `line` is that of the first line of code.
local function blocks(text)
  local found, above, number = {}, {}, 0
  local block, fence
  for line in (text .. "\n"):gmatch("(.-)\r?\n") do
    number = number + 1
    if fence then
      if line:find("^%s*" .. fence .. "%s*$") then
        if block then
          block.code = table.concat(block.lines, "\n") .. "\n"
          found[#found + 1] = block
        end
        block, fence, above = nil, nil, {}
      elseif block then
        block.lines[#block.lines + 1] = line
      end
    else
      local language
      fence, language = line:match("^%s*(```+)%s*(%w*)")
      if fence and language == "lua" then
        block = { line = number + 1, lines = {} }
        block.directive, block.text = directive(table.concat(above, "\n"))
      elseif not fence then
        above[#above + 1] = line
      end
    end
  end
  assert(not fence, "a code block has no end")
  return found
end

-- The code with its lines numbered as in the document.
local function numbered(block)
  return ("\n"):rep(block.line - 1) .. block.code
end

local function compile(name, block)
  local ok, message = load(numbered(block), "@" .. name)
  if not ok then error(message, 0) end
end

local function run(name, block)
  local status, stdout, stderr = helper.run_script(numbered(block),
    { name = name, timeout = 20 })
  if status ~= 0 then
    error(("%s:%d: exit status %d%s\n%s%s"):format(name, block.line, status,
      (status == 124 or status == 137) and " (its time was up)" or "",
      stderr, stdout), 0)
  end
  if block.directive == "output" and trim(stdout) ~= block.text then
    error(("%s:%d: prints\n%s\ninstead of\n%s"):format(name, block.line,
      trim(stdout), block.text), 0)
  end
end

for _, name in ipairs(documents()) do
  describe(name, function()
    local file = assert(io.open(name, "rb"))
    local text = file:read("a")
    file:close()
    for _, block in ipairs(blocks(text)) do
      if block.directive == "no-run" then
        it(("line %d compiles"):format(block.line), function()
          compile(name, block)
        end)
      else
        it(("line %d runs"):format(block.line), function()
          run(name, block)
        end)
      end
    end
  end)
end
