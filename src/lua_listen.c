/*
** lua_listen.c: the methods of a server, and its constructors.
**
** `serve` is in the Lua layer (net.lua).
*/

#include <stdlib.h>
#include <string.h>

#include "lua_io.h"

static vg_listen_t *check(lua_State *L, vgL_state_t *S) {
  return vgL_check(L, S, 1, VGL_LISTEN);
}

/*
** {== accept.  stack: server, token
*/

/* How the result is given: as a method does, or as an iterator does. */
enum { METHOD, ITERATOR };

static int give_error(lua_State *L, const vg_listen_t *l, int err,
                      lua_KContext how) {
  char text[160];

  if (how == ITERATOR && err == VG_ECLOSED) {
    lua_pushnil(L);
    return 1;
  }
  vg_listen_text(l, text, sizeof text);
  if (how == METHOD) return vgL_fail(L, err, "accept %s", text);
  vgL_pushioerror(L, err, "accept %s", text);
  return lua_error(L);
}

static char *copy_path(const vg_listen_t *l) {
  char *path = malloc(l->path_length + 1);
  if (path == NULL) return NULL;
  memcpy(path, l->path, l->path_length + 1);
  if (path[0] == '\0') path[0] = '@';
  return path;
}

/* The descriptor is ours until the handle has it. */
static int push_connection(lua_State *L, vgL_state_t *S, const vg_listen_t *l,
                           const vg_accepted_t *accepted, lua_KContext how) {
  char *path = NULL;
  vg_io_t *io;
  int err = vg_io_new(S->sched, l->kind, &io);

  if (err == 0) {
    if (l->kind == VG_IO_PIPE) path = copy_path(l);
    err = vg_io_open(io, accepted->fd, &accepted->peer, path);
    if (err < 0) {
      free(path);
      vg_event_release(&io->base.event);
    }
  }
  if (err < 0) {
    vg__socket_close(accepted->fd);
    return give_error(L, l, err, how);
  }
  if (l->nodelay) uv_tcp_nodelay(&io->uv.tcp, 1);
  if (l->keepalive_s > 0)
    uv_tcp_keepalive(&io->uv.tcp, 1, (unsigned)l->keepalive_s);
  vgL_pushbox(L, S, VGL_IO, &io->base.event, 0);
  return 1;
}

static int accept_done(lua_State *L, int status, lua_KContext how) {
  vgL_state_t *S = VGL_S(L);
  vg_listen_t *l = *(vg_listen_t **)lua_touserdata(L, 1);
  vg_accepted_t accepted;
  int err = vgL_woken(L, S);

  VG_UNUSED(status);
  if (err < 0) {
    if (vgL_istokenerror(err, &vgL_self(S)->waker))
      return vgL_failtoken(L, S, err, 2);
    return give_error(L, l, err, how);
  }
  err = vg_listen_granted(l, &accepted);
  if (err < 0) return give_error(L, l, err, how);
  return push_connection(L, S, l, &accepted, how);
}

static int do_accept(lua_State *L, vgL_state_t *S, vg_listen_t *l,
                     lua_KContext how) {
  vg_coroutine_t *co = vgL_enter(L, S, "server.accept");
  vg_accepted_t accepted;
  vgL_token_t token;
  int err;

  vgL_opttoken(L, S, 2, &token);
  err = vg_listen_take(l, &accepted);
  if (err > 0)
    return vgL_ready(L, S, co, push_connection(L, S, l, &accepted, how));
  if (err < 0) return vgL_ready(L, S, co, give_error(L, l, err, how));
  if (vgL_tokenfired(L, S, &token)) return vgL_failtoken(L, S, VG_ETOKEN, 2);
  vgL_newwait(L, S, co, &token);
  err = vg_listen_wait(l, co);
  if (err < 0) {
    vg_waker_clean(co);
    return give_error(L, l, err, how);
  }
  return vgL_park(L, S, co, how, accept_done);
}

/* server:accept([token]) --> handle | nil, err */
static int server_accept(lua_State *L) {
  vgL_state_t *S = VGL_S(L);
  vg_listen_t *l = check(L, S);
  lua_settop(L, 2);
  return do_accept(L, S, l, METHOD);
}

/* for handle in server do: ends when it is closed; raises other errors */
static int server__call(lua_State *L) {
  vgL_state_t *S = VGL_S(L);
  vg_listen_t *l = check(L, S);
  lua_settop(L, 1);
  lua_pushnil(L);
  return do_accept(L, S, l, ITERATOR);
}

/* }================================================================= */


/* server:close() */
static int server_close(lua_State *L) {
  vg_listen_close(check(L, VGL_S(L)));
  return 0;
}

/* server:hide() --> server */
static int server_hide(lua_State *L) {
  vg_listen_t *l = check(L, VGL_S(L));
  vg_event_hide(&l->base.event);
  vg_event_hide(&l->incoming);
  lua_settop(L, 1);
  return 1;
}

/* server:sockname() --> host, port | path | nil, err */
static int server_sockname(lua_State *L) {
  vg_listen_t *l = check(L, VGL_S(L));
  char host[VG_ADDRESS_SIZE];

  if (l->base.event.flags & VG_EVENT_CLOSED)
    return vgL_fail(L, VG_ECLOSED, "sockname");
  if (l->kind == VG_IO_PIPE) {
    lua_pushlstring(L, l->path, l->path_length);
    return 1;
  }
  vg_address_host(&l->address, host, sizeof host);
  lua_pushstring(L, host);
  lua_pushinteger(L, vg_address_port(&l->address));
  return 2;
}

/* server:fd() --> number | nil, err */
static int server_fd(lua_State *L) {
  vg_listen_t *l = check(L, VGL_S(L));
  if (l->fd < 0) return vgL_fail(L, VG_ECLOSED, "fd");
  lua_pushinteger(L, l->fd);
  return 1;
}


/*
** {== What the host does about scarce descriptors
*/

static void relieve(vg_listen_t *l) {
  vgL_state_t *S = l->base.event.scheduler->host.data;
  vgL_scarce(S->from, S, UV_EMFILE);
}

/* stack: light server, code */
static int report(lua_State *L) {
  vg_listen_t *l = lua_touserdata(L, 1);
  vgL_state_t *S = l->base.event.scheduler->host.data;
  char text[160];

  vg_listen_text(l, text, sizeof text);
  vgL_pushioerror(L, (int)lua_tointeger(L, 2), "accept %s", text);
  vgL_reportunhandled(L, S, "clients have to wait", NULL);
  return 0;
}

static void complain(vg_listen_t *l, int err) {
  vgL_state_t *S = l->base.event.scheduler->host.data;
  lua_State *L = S->from;
  int top = lua_gettop(L);

  if (!lua_checkstack(L, 4)) return;
  lua_pushcfunction(L, report);
  lua_pushlightuserdata(L, l);
  lua_pushinteger(L, err);
  lua_pcall(L, 2, 0, 0);
  lua_settop(L, top);
}

/* }================================================================= */


/*
** {== Constructors.  stack: ..., options
*/

static const char *const option_names[] = {"backlog",  "reuseaddr", "reuseport",
                                           "ipv6only", "nodelay",   "keepalive",
                                           NULL};

static int truth(lua_State *L, int index, const char *name, int otherwise) {
  int value = otherwise;
  if (vgL_optfield(L, index, name) != LUA_TNIL) value = lua_toboolean(L, -1);
  lua_pop(L, 1);
  return value;
}

static void check_options(lua_State *L, int index, vg_listen_options_t *o) {
  lua_Integer backlog = 0;

  if (!lua_isnil(L, index)) vgL_checkoptions(L, index, option_names);
  if (vgL_optfield(L, index, "backlog") != LUA_TNIL) {
    int is_integer;
    backlog = lua_tointegerx(L, -1, &is_integer);
    luaL_argcheck(L, is_integer && backlog > 0 && backlog <= INT32_MAX, index,
                  "backlog: a positive integer expected");
  }
  lua_pop(L, 1);
  o->backlog = (int)backlog;
  o->reuseaddr = truth(L, index, "reuseaddr", 1) ? 1 : 0;
  o->reuseport = truth(L, index, "reuseport", 0) ? 1 : 0;
  o->ipv6only = truth(L, index, "ipv6only", 0) ? 1 : 0;
}

static int push_server(lua_State *L, vgL_state_t *S, vg_listen_t *l,
                       int options) {
  l->relieve = relieve;
  l->complain = complain;
  vgL_pushbox(L, S, VGL_LISTEN, &l->base.event, 0);
  if (l->kind == VG_IO_TCP) {
    l->nodelay = truth(L, options, "nodelay", 0) ? 1 : 0;
    vgL_optfield(L, options, "keepalive");
    l->keepalive_s = vgL_tokeepalive(L, -1);
    lua_pop(L, 1);
  }
  return 1;
}

/* core.tcp_listen(address, port, options) --> server | nil, err */
static int l_tcp_listen(lua_State *L) {
  vgL_state_t *S = VGL_S(L);
  const char *host = luaL_checkstring(L, 1);
  int port = vgL_checkport(L, 2), err;
  vg_listen_options_t options;
  vg_address_t address;
  vg_listen_t *l;

  vgL_checkopen(L, S);
  lua_settop(L, 3);
  check_options(L, 3, &options);
  if (vg_address_parse(&address, host, port) < 0)
    return luaL_argerror(L, 1, "numeric address expected");
  err = vg_listen_new(S->sched, &address, &options, &l);
  if (err < 0 && vgL_scarce(L, S, err))
    err = vg_listen_new(S->sched, &address, &options, &l);
  if (err < 0) {
    char text[VG_ADDRESS_SIZE];
    vg_address_text(&address, text, sizeof text);
    return vgL_fail(L, err, "listen %s", text);
  }
  return push_server(L, S, l, 3);
}

/* vigil.pipe.listen(path [, options]) --> server | nil, err */
static int l_pipe_listen(lua_State *L) {
  vgL_state_t *S = VGL_S(L);
  size_t length;
  const char *path = luaL_checklstring(L, 1, &length);
  vg_listen_options_t options;
  vg_listen_t *l;
  int err;

  vgL_checkopen(L, S);
  lua_settop(L, 2);
  check_options(L, 2, &options);
  err = vg_listen_new_path(S->sched, path, length, &options, &l);
  if (err < 0 && vgL_scarce(L, S, err))
    err = vg_listen_new_path(S->sched, path, length, &options, &l);
  if (err < 0)
    return vgL_fail(L, err, "listen %s%s", path[0] == '\0' ? "@" : "",
                    path + (length > 1 && path[0] == '\0'));
  return push_server(L, S, l, 2);
}

/* }================================================================= */


/* await(server) --> true, once it has been closed */
static int server_collect(lua_State *L, vgL_state_t *S, int index,
                          vg_event_t *event, int status, intptr_t value) {
  VG_UNUSED(S);
  VG_UNUSED(index);
  VG_UNUSED(event);
  VG_UNUSED(status);
  VG_UNUSED(value);
  lua_pushboolean(L, 1);
  return 1;
}

static const vgL_type_t type = {
    .name = "vigil.server",
    .is_box = 1,
    .collect = server_collect,
};

static const luaL_Reg methods[] = {
    {"accept", server_accept}, {"close", server_close},
    {"hide", server_hide},     {"sockname", server_sockname},
    {"fd", server_fd},         {NULL, NULL}};

static const luaL_Reg metamethods[] = {
    {"__call", server__call}, {"__close", server_close}, {NULL, NULL}};

static const luaL_Reg functions[] = {
    {"tcp_listen", l_tcp_listen}, {"pipe_listen", l_pipe_listen}, {NULL, NULL}};

/* The module table gets `server_methods`, for net.lua to add to. */
void vgL_openlisten(lua_State *L, vgL_state_t *S) {
  vgL_newtype(L, S, VGL_LISTEN, &type, methods, metamethods);
  lua_rawgeti(L, LUA_REGISTRYINDEX, S->metatable_refs[VGL_LISTEN]);
  lua_getfield(L, -1, "__index");
  lua_setfield(L, -3, "server_methods");
  lua_pop(L, 1);
  vgL_setfuncs(L, functions);
}
