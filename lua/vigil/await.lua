--- Waiting for many: tables of what core.gather finds.
--
-- core.gather(members, need, fail_fast, token, owned) waits until `need`
-- members have succeeded, all have settled, or (fail_fast) one has failed.  It
-- returns a flat array of the settled ones in that order: index, ok, value, ...

return function(core, vigil)
  local kind, gather, spawn, await = core.kind, core.gather, core.spawn,
    core.await

  local function bad(name, argument, text, level)
    error(("bad argument #%d to '%s' (%s)"):format(argument, name, text),
      level or 4)
  end

  --- Reads a source into an array of members and one of their keys.  Nothing
  -- is subscribed before every member has been seen.
  local function read(name, argument, source)
    local members, keys = {}, {}
    local function add(key, member)
      if kind(member) == nil then
        bad(name, argument, ("entry %s: awaitable expected, got %s"):format(
          tostring(key), type(member)), 5)
      end
      members[#members + 1], keys[#keys + 1] = member, key
    end
    if type(source) == "table" then
      local count = #source
      for key = 1, count do
        if source[key] ~= nil then add(key, source[key]) end
      end
      for key, member in pairs(source) do
        if not (math.type(key) == "integer" and key >= 1 and key <= count)
        then
          add(key, member)
        end
      end
    elseif type(source) == "function" then
      local key, member = 1, source()
      while member ~= nil do
        add(key, member)
        key, member = key + 1, source()
      end
    else
      bad(name, argument, "table or iterator expected, got " .. type(source))
    end
    return members, keys
  end

  local known = { token = true, ordered = true, fill = true, cancel = true }

  local function check_options(name, argument, options)
    if options == nil then return {} end
    if type(options) ~= "table" then
      bad(name, argument, "options: table expected, got " .. type(options))
    end
    for option in pairs(options) do
      if not known[option] then
        bad(name, argument, "unknown option '" .. tostring(option) .. "'")
      end
    end
    return options
  end

  --- A channel's case takes effect when it is chosen, and only then; so it
  -- waits in a coroutine of its own here, which goes when it is not needed.
  local function wrap_cases(members)
    local owned
    for i, member in ipairs(members) do
      if kind(member) == "case" then
        owned = owned or {}
        members[i], owned[i] = spawn(await, member), true
      end
    end
    return owned
  end

  --- Cancels members that are still there, and waits for their end.
  local function cancel_rest(members)
    local rest = {}
    for _, member in ipairs(members) do
      if kind(member) == "coroutine" then
        if member:cancel() then rest[#rest + 1] = member end
      elseif kind(member) == "event" and member.cancel then
        member:cancel()
      end
    end
    if #rest > 0 then
      vigil.protect(function()
        gather(rest, #rest, false)
      end)
    end
  end

  local function gather_from(members, need, fail_fast, options)
    local owned = wrap_cases(members)
    local ok, outcome = pcall(gather, members, need, fail_fast,
      options.token, owned)
    for i in pairs(owned or {}) do members[i]:cancel() end
    if options.cancel then cancel_rest(members) end
    if not ok then error(outcome, 0) end
    return outcome
  end

  --- Results and errors under the members' keys; with ordered = false, as
  -- arrays in order of completion; with fill, a value for what is missing.
  local function tabulate(outcome, keys, options)
    local results, errors = {}, {}
    for i = 1, #outcome, 3 do
      local key = keys[outcome[i]]
      if options.ordered == false then
        local target = outcome[i + 1] and results or errors
        target[#target + 1] = outcome[i + 2]
      elseif outcome[i + 1] then
        results[key] = outcome[i + 2]
      else
        errors[key] = outcome[i + 2]
      end
    end
    if options.fill ~= nil and options.ordered ~= false then
      for _, key in ipairs(keys) do
        if results[key] == nil then results[key] = options.fill end
      end
    end
    return results, errors
  end

  --- The first failure, in time, or nothing.
  local function first_failure(outcome)
    for i = 1, #outcome, 3 do
      if not outcome[i + 1] then return true, outcome[i + 2] end
    end
    return false
  end

  local function check_count(name, n)
    if math.type(n) ~= "integer" then
      bad(name, 1, "n: integer expected, got " .. type(n))
    end
    if n < 0 then bad(name, 1, "n: must not be negative") end
  end

  --- await_all(list [, opts]) --> results, errors
  function vigil.await_all(list, options)
    options = check_options("await_all", 2, options)
    local members, keys = read("await_all", 1, list)
    local outcome = gather_from(members, #members, false, options)
    return tabulate(outcome, keys, options)
  end

  --- await_all_or_fail(list [, opts]) --> results; raises the first error
  function vigil.await_all_or_fail(list, options)
    options = check_options("await_all_or_fail", 2, options)
    local members, keys = read("await_all_or_fail", 1, list)
    local outcome = gather_from(members, #members, true, options)
    local failed, err = first_failure(outcome)
    if failed then error(err, 0) end
    return (tabulate(outcome, keys, options))
  end

  --- await_any_or_fail(list [, opts]) --> value, key of the first to settle
  function vigil.await_any_or_fail(list, options)
    options = check_options("await_any_or_fail", 2, options)
    local members, keys = read("await_any_or_fail", 1, list)
    if #members == 0 then return nil end
    local outcome = gather_from(members, 1, true, options)
    if not outcome[2] then error(outcome[3], 0) end
    return outcome[3], keys[outcome[1]]
  end

  --- await_first_success(list [, opts]) --> value, key, errors
  function vigil.await_first_success(list, options)
    options = check_options("await_first_success", 2, options)
    local members, keys = read("await_first_success", 1, list)
    if #members == 0 then return nil, nil, {} end
    local outcome = gather_from(members, 1, false, options)
    local _, errors = tabulate(outcome, keys, options)
    for i = 1, #outcome, 3 do
      if outcome[i + 1] then
        return outcome[i + 2], keys[outcome[i]], errors
      end
    end
    return nil, nil, errors
  end

  --- await_any_of(n, list [, opts]) --> results, errors
  function vigil.await_any_of(n, list, options)
    check_count("await_any_of", n)
    options = check_options("await_any_of", 3, options)
    local members, keys = read("await_any_of", 2, list)
    if n == 0 or #members == 0 then return {}, {} end
    local outcome = gather_from(members, n, false, options)
    return tabulate(outcome, keys, options)
  end

  --- await_any_of_or_fail(n, list [, opts]) --> results
  function vigil.await_any_of_or_fail(n, list, options)
    check_count("await_any_of_or_fail", n)
    options = check_options("await_any_of_or_fail", 3, options)
    local members, keys = read("await_any_of_or_fail", 2, list)
    if n == 0 or #members == 0 then return {} end
    local outcome = gather_from(members, n, true, options)
    local failed, err = first_failure(outcome)
    if failed then error(err, 0) end
    return (tabulate(outcome, keys, options))
  end
end
