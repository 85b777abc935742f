--- vigil.tcp and vigil.pipe: connecting by name, servers that serve.

return function(core, vigil)
  local function bad(argument, name, expected, value)
    error(("bad argument #%d to '%s' (%s expected, got %s)"):format(argument,
      name, expected, type(value)), 3)
  end

  local function check_port(name, port)
    local number = math.tointeger(port)
    if not number or number < 0 or number > 65535 then
      error(("bad argument #2 to '%s' (port from 0 to 65535 expected, got %s)")
        :format(name, tostring(port)), 3)
    end
  end

  --- A misspelt option would be one that silently does nothing.
  local function check_options(name, argument, options, known)
    if options == nil then return end
    if type(options) ~= "table" then
      error(("bad argument #%d to '%s' (table expected, got %s)"):format(
        argument, name, type(options)), 3)
    end
    for option in pairs(options) do
      if not known[option] then
        error(("bad argument #%d to '%s' (unknown option '%s')"):format(
          argument, name, tostring(option)), 3)
      end
    end
  end

  --- The third argument of connect: a token, or options with one in them.
  local function split(value)
    if type(value) ~= "table" then return value, nil end
    local meta = getmetatable(value)
    if type(meta) == "table" and meta.__await then return value, nil end
    return value.token, value
  end

  local function address_text(host, port)
    return (host:find(":", 1, true) and "[%s]:%d" or "%s:%d"):format(host,
      port)
  end

  --- All that were tried have failed: one error says why each did.
  local function all_failed(host, port, errors)
    if #errors == 1 then return errors[1] end
    local texts = {}
    for i, err in ipairs(errors) do texts[i] = err.message end
    local err = core.new_error("io", errors[1].code,
      ("no address of %s worked: %s"):format(address_text(host, port),
        table.concat(texts, "; ")))
    err.errors = errors
    return err
  end

  --- Its time is up, or it was called off: the next address has no chance.
  local function is_over(err)
    return err.kind == "timeout" or err.kind == "cancelled"
  end

  local function try_each(host, port, token, attempt)
    if type(token) == "number" then token = vigil.timeout(token) end
    local addresses, err = core.resolve(host, token)
    if not addresses then return nil, err end
    local errors = {}
    for _, address in ipairs(addresses) do
      local handle
      handle, err = attempt(address, token)
      if handle then return handle end
      if is_over(err) then return nil, err end
      errors[#errors + 1] = err
    end
    return nil, all_failed(host, port, errors)
  end

  local tcp = {}

  --- tcp.connect(host, port [, token | options]) --> handle | nil, err
  -- options: token, nodelay, keepalive, local_host, local_port
  function tcp.connect(host, port, options)
    if type(host) ~= "string" then bad(1, "connect", "string", host) end
    check_port("connect", port)
    local token
    token, options = split(options)
    if core.is_address(host) then
      return core.tcp_connect(host, port, token, options)
    end
    return try_each(host, port, token, function(address, limit)
      return core.tcp_connect(address, port, limit, options)
    end)
  end

  --- tcp.listen(host, port [, options]) --> server | nil, err
  -- host: an address or a name; nil or "*" stands for every address (IPv4).
  -- options: backlog, reuseaddr, reuseport, ipv6only, nodelay, keepalive
  function tcp.listen(host, port, options)
    if host == nil or host == "*" then host = "0.0.0.0" end
    if type(host) ~= "string" then bad(1, "listen", "string", host) end
    check_port("listen", port)
    if options ~= nil and type(options) ~= "table" then
      bad(3, "listen", "table", options)
    end
    if core.is_address(host) then
      return core.tcp_listen(host, port, options)
    end
    return try_each(host, port, nil, function(address)
      return core.tcp_listen(address, port, options)
    end)
  end

  vigil.tcp = tcp
  vigil.pipe = {
    connect = core.pipe_connect,
    listen = core.pipe_listen,
    pair = core.pipe_pair,
  }

  --- Keeps the traceback of an error with it.
  local function with_traceback(err)
    return { err, debug.traceback(nil, 2) }
  end

  local function report(failure, on_error, conn)
    local err, traceback = failure[1], failure[2]
    if on_error then
      local ok, second = xpcall(on_error, with_traceback, err, conn)
      if ok then return end
      core.report_error(second[1], "in on_error of a server", second[2])
    end
    core.report_error(err, "in a handler of a server", traceback)
  end

  local serve_options = { concurrency = true, on_error = true, token = true }

  --- server:serve(handler [, options]) --> true | nil, err
  --
  -- Calls handler(conn, server) in a coroutine of its own for each connection,
  -- and closes the connection when it returns or fails.  Returns when the
  -- server has been closed and every handler has ended; when it is cancelled,
  -- so are the handlers.
  -- options: concurrency (how many at a time), on_error(err, conn), token
  function core.server_methods.serve(server, handler, options)
    if type(handler) ~= "function" then
      bad(2, "serve", "function", handler)
    end
    check_options("serve", 3, options, serve_options)
    options = options or {}
    local limit, on_error = options.concurrency, options.on_error
    if limit and (not math.tointeger(limit) or limit < 1) then
      bad(3, "serve", "concurrency: positive integer", limit)
    end
    local token = options.token
    if type(token) == "number" then token = vigil.timeout(token) end
    local scope = core.new_scope()
    local running = limit and vigil.channel(limit)

    local function handle(conn)
      local ok, failure = xpcall(handler, with_traceback, conn, server)
      local cancelled = not ok and vigil.is_error(failure[1], "cancelled")
        and vigil.current():cancel_requested()
      if not ok and not cancelled then report(failure, on_error, conn) end
      conn:close()
      if running then running:try_recv() end
      if cancelled then error(failure[1], 0) end
    end

    local function accept_all()
      while true do
        if running then
          local ok, err = running:send(true, token)
          if not ok then return err end
        end
        local conn, err = server:accept(token)
        if not conn then return err end
        core.spawn_in(scope, handle, conn)
      end
    end

    local ok, err = pcall(accept_all)
    local waited, failure = ok, err
    if ok then waited, failure = pcall(vigil.await, scope) end
    if not waited then
      scope:cancel()
      vigil.protect(function() vigil.await(scope) end)
      error(failure, 0)
    end
    if err.kind == "closed" then return true end
    return nil, err
  end
end
