/*
** lua_connect.c: making connections: TCP, unix sockets, pairs; name lookups.
**
** The Lua layer (net.lua) puts vigil.tcp.connect together from these: a name
** is looked up and its addresses are tried in order.
*/

#include <string.h>

#include "lua_io.h"

int vgL_checkport(lua_State *L, int index) {
  lua_Integer port = luaL_checkinteger(L, index);
  luaL_argcheck(L, port >= 0 && port <= 65535, index,
                "port: 0 to 65535 expected");
  return (int)port;
}

/*
** {== Connecting.  stack: address..., token [, options], handle
*/

/* ctx: index of the token; the options, if any, come after it, and the handle
** is at index 5. */
enum { HANDLE = 5 };

static int fail(lua_State *L, vg_io_t *io, int err) {
  char peer[160];
  vg_io_peer_text(io, peer, sizeof peer);
  return vgL_fail(L, err, "connect %s", peer);
}

/* The descriptor goes at once, whatever comes of the wait. */
static int connect_done(lua_State *L, int status, lua_KContext token) {
  vgL_state_t *S = VGL_S(L);
  vg_io_t *io = *(vg_io_t **)lua_touserdata(L, HANDLE);
  int err = io->state == VG_IO_OPEN ? 0
            : vg__io_is_closed(io)  ? VG_ECLOSED
                                    : io->read_status;
  char peer[160];

  VG_UNUSED(status);
  vg_io_peer_text(io, peer, sizeof peer);
  if (vgL_self(S)->waker.error != 0) {
    vg_io_abort(io);
    return vgL_failwait(L, S, vgL_woken(L, S), (int)token, "connect", peer);
  }
  if (err < 0) {
    vg_io_abort(io);
    return vgL_fail(L, err, "connect %s", peer);
  }
  vgL_applyoptions(L, io, (int)token + 1);
  lua_settop(L, HANDLE);
  return 1;
}

static int wait_connected(lua_State *L, vgL_state_t *S, vg_coroutine_t *co,
                          vg_io_t *io, const vgL_token_t *token, int index) {
  int err;

  vgL_newwait(L, S, co, token);
  err = vg_io_wait_connected(io, co);
  if (err < 0) {
    vg_waker_clean(co);
    vg_io_abort(io);
    return fail(L, io, err);
  }
  return vgL_park(L, S, co, index, connect_done);
}

/* The address to connect from, out of the options at 4. */
static int local_address(lua_State *L, vg_address_t *local) {
  const char *host;
  int port = 0;

  if (vgL_optfield(L, 4, "local_port") != LUA_TNIL)
    port = vgL_checkport(L, lua_gettop(L));
  vgL_optfield(L, 4, "local_host");
  host = lua_tostring(L, -1);
  if (host == NULL && port == 0) return 0;
  if (vg_address_parse(local, host != NULL ? host : "0.0.0.0", port) < 0)
    luaL_argerror(L, 4, "local_host: numeric address expected");
  return 1;
}

static const char *const option_names[] = {
    "token", "nodelay", "keepalive", "local_host", "local_port", NULL};

/* core.tcp_connect(address, port, token, options) --> handle | nil, err */
static int l_tcp_connect(lua_State *L) {
  vgL_state_t *S = VGL_S(L);
  const char *host = luaL_checkstring(L, 1);
  int port = vgL_checkport(L, 2), has_local, tried = 0, err;
  vg_address_t address, local;
  vg_coroutine_t *co;
  vgL_token_t token;
  vg_io_t *io;

  lua_settop(L, 4);
  co = vgL_enter(L, S, "tcp.connect");
  vgL_opttoken(L, S, 3, &token);
  if (vg_address_parse(&address, host, port) < 0)
    return luaL_argerror(L, 1, "numeric address expected");
  if (!lua_isnil(L, 4)) vgL_checkoptions(L, 4, option_names);
  has_local = local_address(L, &local);
  if (vgL_tokenfired(L, S, &token)) return vgL_failtoken(L, S, VG_ETOKEN, 3);
  for (;;) {
    lua_settop(L, 4);
    err = vgL_newio(L, S, VG_IO_TCP, &io);
    if (err == 0) {
      err = vg_io_connect(io, &address, has_local ? &local : NULL);
      if (err == 0) break;
      vg_io_abort(io);
    }
    if (tried++ > 0 || !vgL_scarce(L, S, err)) {
      char text[VG_ADDRESS_SIZE];
      vg_address_text(&address, text, sizeof text);
      return vgL_fail(L, err, "connect %s", text);
    }
  }
  return wait_connected(L, S, co, io, &token, 3);
}

/* vigil.pipe.connect(path [, token]) --> handle | nil, err */
static int l_pipe_connect(lua_State *L) {
  vgL_state_t *S = VGL_S(L);
  size_t length;
  const char *path = luaL_checklstring(L, 1, &length);
  vg_coroutine_t *co;
  vgL_token_t token;
  vg_io_t *io;
  int tried = 0, err;

  lua_settop(L, 2);
  co = vgL_enter(L, S, "pipe.connect");
  vgL_opttoken(L, S, 2, &token);
  if (vgL_tokenfired(L, S, &token)) return vgL_failtoken(L, S, VG_ETOKEN, 2);
  for (;;) {
    lua_settop(L, HANDLE - 1);
    err = vgL_newio(L, S, VG_IO_PIPE, &io);
    if (err == 0) {
      err = vg_io_connect_path(io, path, length);
      if (err == 0) break;
      vg_io_abort(io);
    }
    if (tried++ > 0 || !vgL_scarce(L, S, err))
      return vgL_fail(L, err, "connect %s%s", path[0] == '\0' ? "@" : "",
                      path + (length > 1 && path[0] == '\0'));
  }
  if (io->state == VG_IO_OPEN) return vgL_ready(L, S, co, 1);
  return wait_connected(L, S, co, io, &token, 2);
}

/* }================================================================= */


/* stack: handle, handle */
static int open_pair(lua_State *L, vgL_state_t *S, vg_io_t *ends[2]) {
  uv_os_sock_t fds[2];
  int i, err = uv_socketpair(SOCK_STREAM, 0, fds, 0, 0);

  if (err < 0 && vgL_scarce(L, S, err))
    err = uv_socketpair(SOCK_STREAM, 0, fds, 0, 0);
  for (i = 0; i < 2 && err == 0; i++) {
    err = vg_io_open(ends[i], fds[i], NULL, NULL);
    if (err == 0) continue;
    for (; i < 2; i++) vg__socket_close(fds[i]);
  }
  return err;
}

/* vigil.pipe.pair() --> handle, handle | nil, err */
static int l_pipe_pair(lua_State *L) {
  vgL_state_t *S = VGL_S(L);
  vg_io_t *ends[2];
  int made = 0, err = 0;

  vgL_checkopen(L, S);
  lua_settop(L, 0);
  while (made < 2 && err == 0) {
    err = vgL_newio(L, S, VG_IO_PIPE, &ends[made]);
    if (err == 0) made++;
  }
  if (err == 0) err = open_pair(L, S, ends);
  if (err == 0) return 2;
  while (made > 0) vg_io_abort(ends[--made]);
  return vgL_fail(L, err, "pair");
}


/*
** {== Name lookups.  stack: host, token, lookup
*/

#define LOOKUP "vigil.lookup"

static int lookup__gc(lua_State *L) {
  vgL_state_t *S = VGL_S(L);
  vg_resolve_t **box = lua_touserdata(L, 1);
  vg_resolve_t *lookup = *box;

  *box = NULL;
  if (lookup != NULL && S->sched != NULL) vg_event_release(&lookup->event);
  return 0;
}

/* Pushes a list of numeric addresses, in the resolver's order. */
static void push_addresses(lua_State *L, const struct addrinfo *info) {
  lua_Integer n = 0;

  lua_newtable(L);
  for (; info != NULL; info = info->ai_next) {
    char host[VG_ADDRESS_SIZE];
    vg_address_t address;

    if (info->ai_family != AF_INET && info->ai_family != AF_INET6) continue;
    memset(&address, 0, sizeof address);
    memcpy(
        &address, info->ai_addr,
        info->ai_addrlen < sizeof address ? info->ai_addrlen : sizeof address);
    vg_address_host(&address, host, sizeof host);
    lua_pushstring(L, host);
    lua_rawseti(L, -2, ++n);
  }
}

static int lookup_done(lua_State *L, int status, lua_KContext ctx) {
  vgL_state_t *S = VGL_S(L);
  const vg_resolve_t *lookup = *(vg_resolve_t **)lua_touserdata(L, 3);
  int err = vgL_woken(L, S);

  VG_UNUSED(status);
  VG_UNUSED(ctx);
  if (err < 0)
    return vgL_failwait(L, S, err, 2, "lookup of", lua_tostring(L, 1));
  push_addresses(L, lookup->addresses);
  return 1;
}

/* core.resolve(host [, token]) --> { address, ... } | nil, err */
static int l_resolve(lua_State *L) {
  vgL_state_t *S = VGL_S(L);
  const char *host = luaL_checkstring(L, 1);
  vg_resolve_t **box;
  vg_coroutine_t *co;
  vgL_token_t token;
  int err;

  lua_settop(L, 2);
  co = vgL_enter(L, S, "dns.resolve");
  vgL_opttoken(L, S, 2, &token);
  if (vgL_tokenfired(L, S, &token)) return vgL_failtoken(L, S, VG_ETOKEN, 2);
  box = lua_newuserdatauv(L, sizeof *box, 0);
  *box = NULL;
  luaL_setmetatable(L, LOOKUP);
  err = vg_resolve_new(S->sched, host, box);
  if (err == 0) {
    vgL_newwait(L, S, co, &token);
    err = vg_resume_when(co, &(*box)->event, 0, NULL, NULL);
    if (err < 0) vg_waker_clean(co);
  }
  if (err < 0) return vgL_fail(L, err, "lookup of %s", host);
  return vgL_park(L, S, co, 0, lookup_done);
}

/* core.is_address(host) --> boolean: numeric, not a name */
static int l_is_address(lua_State *L) {
  vg_address_t address;
  lua_pushboolean(L,
                  vg_address_parse(&address, luaL_checkstring(L, 1), 0) == 0);
  return 1;
}

/* }================================================================= */


static const luaL_Reg lookup_metamethods[] = {{"__gc", lookup__gc},
                                              {NULL, NULL}};

static const luaL_Reg functions[] = {
    {"tcp_connect", l_tcp_connect}, {"pipe_connect", l_pipe_connect},
    {"pipe_pair", l_pipe_pair},     {"resolve", l_resolve},
    {"is_address", l_is_address},   {NULL, NULL}};

/* stack: module table */
void vgL_openconnect(lua_State *L, vgL_state_t *S) {
  VG_UNUSED(S);
  luaL_newmetatable(L, LOOKUP);
  vgL_setfuncs(L, lookup_metamethods);
  lua_pop(L, 1);
  vgL_setfuncs(L, functions);
}
