-- Checks that the rockspec lists every source and every Lua file, and nothing
-- else.  Run from the root: lua5.4 .ci/rockspec.lua

local rockspec = {}
assert(loadfile("vigil-scm-1.rockspec", "t", rockspec))()

local listed = {} -- file -> module
for name, entry in pairs(rockspec.build.modules) do
  for _, file in ipairs(entry.sources or { entry }) do
    listed[file] = name
  end
end

local wrong = 0
local function complain(...)
  wrong = wrong + 1
  print("vigil-scm-1.rockspec: " .. string.format(...))
end

for file in io.popen("ls src/*.c lua/vigil/*.lua"):lines() do
  local module = file:match("^lua/(.*)%.lua$")
  module = module and module:gsub("/", "."):gsub("%.init$", "")
  if not listed[file] then
    complain("%s is not listed", file)
  elseif module and listed[file] ~= module then
    complain("%s is listed as %s, not %s", file, listed[file], module)
  end
  listed[file] = nil
end
for file in pairs(listed) do
  complain("%s is listed and does not exist", file)
end
os.exit(wrong == 0)
