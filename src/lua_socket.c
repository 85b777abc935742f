/*
** lua_socket.c: what a handle's socket is and can be told: descriptor, names,
** options.
*/

#include <math.h>
#include <string.h>

#include "lua_io.h"

static vg_io_t *check(lua_State *L, vgL_state_t *S) {
  return vgL_checkio(L, S, 1);
}

static int get_fd(const vg_io_t *io, int *fd) {
  uv_os_fd_t number;
  int err;
  if (vg__io_is_closed(io)) return VG_ECLOSED;
  err = uv_fileno(&io->uv.handle, &number);
  *fd = number;
  return err;
}

/* handle:fd() --> number | nil, err */
static int io_fd(lua_State *L) {
  vg_io_t *io = check(L, VGL_S(L));
  int fd, err = get_fd(io, &fd);
  if (err < 0) return vgL_failio(L, io, err, "fd");
  lua_pushinteger(L, fd);
  return 1;
}


/*
** {== Addresses
*/

static int push_address(lua_State *L, const vg_address_t *address) {
  char host[VG_ADDRESS_SIZE];
  vg_address_host(address, host, sizeof host);
  lua_pushstring(L, host);
  lua_pushinteger(L, vg_address_port(address));
  return 2;
}

static int push_path(lua_State *L, const vg_io_t *io, int peer) {
  char path[256];
  size_t size = sizeof path;
  int fd, err = get_fd(io, &fd);

  if (err == 0) err = vg__socket_name(fd, peer, path, &size);
  if (err < 0) return vgL_failio(L, io, err, peer ? "peername" : "sockname");
  lua_pushlstring(L, path, size);
  return 1;
}

/* handle:sockname() --> host, port | path | nil, err */
static int io_sockname(lua_State *L) {
  vg_io_t *io = check(L, VGL_S(L));
  vg_address_t address;
  int size = sizeof address, err;

  if (io->kind == VG_IO_PIPE) return push_path(L, io, 0);
  err = vg__io_is_closed(io)
            ? VG_ECLOSED
            : uv_tcp_getsockname(&io->uv.tcp, &address.any, &size);
  if (err < 0) return vgL_failio(L, io, err, "sockname");
  return push_address(L, &address);
}

/* handle:peername() --> host, port | path | nil, err.  Known even when the
** connection has been lost. */
static int io_peername(lua_State *L) {
  vg_io_t *io = check(L, VGL_S(L));

  if (io->kind == VG_IO_PIPE) return push_path(L, io, 1);
  if (vg__io_is_closed(io)) return vgL_failio(L, io, VG_ECLOSED, "peername");
  return push_address(L, &io->name.peer);
}

/* }================================================================= */


/*
** {== Options
*/

typedef struct option {
  const char *name;
  int (*set)(lua_State *L, vg_io_t *io, int index);
  int (*get)(lua_State *L, vg_io_t *io); /* pushes it */
} option_t;

static int socket_option(const vg_io_t *io, int option, int *value) {
  int fd, err = io->kind == VG_IO_TCP ? get_fd(io, &fd) : UV_ENOTSUP;
  return err < 0 ? err : vg__socket_get(fd, option, value);
}

static int set_nodelay(lua_State *L, vg_io_t *io, int index) {
  luaL_checktype(L, index, LUA_TBOOLEAN);
  if (io->kind != VG_IO_TCP) return UV_ENOTSUP;
  return uv_tcp_nodelay(&io->uv.tcp, lua_toboolean(L, index));
}

static int get_nodelay(lua_State *L, vg_io_t *io) {
  int value, err = socket_option(io, VG_SOCKET_NODELAY, &value);
  if (err < 0) return err;
  lua_pushboolean(L, value != 0);
  return 0;
}

int vgL_tokeepalive(lua_State *L, int index) {
  double seconds;
  if (lua_isnoneornil(L, index) || lua_type(L, index) == LUA_TBOOLEAN)
    return lua_toboolean(L, index) ? 60 : 0;
  seconds = vgL_checkseconds(L, index, "keepalive");
  return seconds < 1 ? 1 : seconds > 32767 ? 32767 : (int)seconds;
}

static int set_keepalive(lua_State *L, vg_io_t *io, int index) {
  int seconds = vgL_tokeepalive(L, index);
  if (io->kind != VG_IO_TCP) return UV_ENOTSUP;
  return uv_tcp_keepalive(&io->uv.tcp, seconds > 0, (unsigned)seconds);
}

static int get_keepalive(lua_State *L, vg_io_t *io) {
  int value, err = socket_option(io, VG_SOCKET_KEEPALIVE, &value);
  if (err < 0) return err;
  lua_pushboolean(L, value != 0);
  return 0;
}

/* Seconds after which unacknowledged bytes break the connection. */
static int set_user_timeout(lua_State *L, vg_io_t *io, int index) {
  double seconds = vgL_checkseconds(L, index, "user_timeout");
  int fd, err = io->kind == VG_IO_TCP ? get_fd(io, &fd) : UV_ENOTSUP;
  if (err < 0) return err;
  return vg__socket_set(
      fd, VG_SOCKET_USER_TIMEOUT,
      seconds < 2e6 ? (int)(seconds * 1000 + 0.5) : 2000000000);
}

static int get_user_timeout(lua_State *L, vg_io_t *io) {
  int value, err = socket_option(io, VG_SOCKET_USER_TIMEOUT, &value);
  if (err < 0) return err;
  lua_pushnumber(L, value / 1000.0);
  return 0;
}

static int buffer_size(vg_io_t *io, int send, int *value) {
  return send ? uv_send_buffer_size(&io->uv.handle, value)
              : uv_recv_buffer_size(&io->uv.handle, value);
}

static int set_buffer_size(lua_State *L, vg_io_t *io, int index, int send) {
  lua_Integer size = luaL_checkinteger(L, index);
  int value = (int)size;
  luaL_argcheck(L, size > 0 && size < INT32_MAX, index, "bytes expected");
  return buffer_size(io, send, &value);
}

static int get_buffer_size(lua_State *L, vg_io_t *io, int send) {
  int value = 0, err = buffer_size(io, send, &value);
  if (err < 0) return err;
  lua_pushinteger(L, value);
  return 0;
}

static int set_sndbuf(lua_State *L, vg_io_t *io, int index) {
  return set_buffer_size(L, io, index, 1);
}

static int get_sndbuf(lua_State *L, vg_io_t *io) {
  return get_buffer_size(L, io, 1);
}

static int set_rcvbuf(lua_State *L, vg_io_t *io, int index) {
  return set_buffer_size(L, io, index, 0);
}

static int get_rcvbuf(lua_State *L, vg_io_t *io) {
  return get_buffer_size(L, io, 0);
}

static int set_limit(lua_State *L, vg_io_t *io, int index, size_t offset) {
  size_t size = vgL_checksize(L, index, index, "value");
  vg_io_limits_t *limits = vg_io_own_limits(io);
  if (limits == NULL) return UV_ENOMEM;
  memcpy((char *)limits + offset, &size, sizeof size);
  return 0;
}

static int get_limit(lua_State *L, size_t limit) {
  if (limit > (size_t)LUA_MAXINTEGER)
    lua_pushnumber(L, (lua_Number)HUGE_VAL);
  else
    lua_pushinteger(L, (lua_Integer)limit);
  return 0;
}

#define LIMIT(name)                                                 \
  static int set_##name(lua_State *L, vg_io_t *io, int index) {     \
    return set_limit(L, io, index, offsetof(vg_io_limits_t, name)); \
  }                                                                 \
  static int get_##name(lua_State *L, vg_io_t *io) {                \
    return get_limit(L, io->limits->name);                          \
  }

LIMIT(high_water)
LIMIT(max_line)
LIMIT(max_all)

/* Seconds for which a peer may take nothing of what a closed handle sends. */
static int set_linger(lua_State *L, vg_io_t *io, int index) {
  double seconds = vgL_checkseconds(L, index, "linger");
  vg_io_limits_t *limits = vg_io_own_limits(io);
  if (limits == NULL) return UV_ENOMEM;
  limits->linger_s = seconds;
  return 0;
}

static int get_linger(lua_State *L, vg_io_t *io) {
  lua_pushnumber(L, (lua_Number)io->limits->linger_s);
  return 0;
}

static const option_t options[] = {
    {"linger", set_linger, get_linger},
    {"nodelay", set_nodelay, get_nodelay},
    {"keepalive", set_keepalive, get_keepalive},
    {"user_timeout", set_user_timeout, get_user_timeout},
    {"sndbuf", set_sndbuf, get_sndbuf},
    {"rcvbuf", set_rcvbuf, get_rcvbuf},
    {"high_water", set_high_water, get_high_water},
    {"max_line", set_max_line, get_max_line},
    {"max_all", set_max_all, get_max_all},
};

static const option_t *check_option(lua_State *L, int index) {
  const char *name = luaL_checkstring(L, index);
  size_t i;
  for (i = 0; i < sizeof options / sizeof options[0]; i++)
    if (strcmp(options[i].name, name) == 0) return &options[i];
  luaL_argerror(L, index, lua_pushfstring(L, "unknown option '%s'", name));
  return NULL;
}

/* handle:setoption(name, value) --> true | nil, err */
static int io_setoption(lua_State *L) {
  vg_io_t *io = check(L, VGL_S(L));
  const option_t *option = check_option(L, 2);
  int err;

  luaL_checkany(L, 3);
  err = vg__io_is_closed(io) ? VG_ECLOSED : option->set(L, io, 3);
  if (err < 0) return vgL_failio(L, io, err, "setoption");
  lua_pushboolean(L, 1);
  return 1;
}

/* handle:getoption(name) --> value | nil, err */
static int io_getoption(lua_State *L) {
  vg_io_t *io = check(L, VGL_S(L));
  const option_t *option = check_option(L, 2);
  int err = vg__io_is_closed(io) ? VG_ECLOSED : option->get(L, io);
  return err < 0 ? vgL_failio(L, io, err, "getoption") : 1;
}

int vgL_optfield(lua_State *L, int index, const char *name) {
  if (lua_isnoneornil(L, index)) {
    lua_pushnil(L);
    return LUA_TNIL;
  }
  return lua_getfield(L, index, name);
}

void vgL_checkoptions(lua_State *L, int index, const char *const names[]) {
  luaL_checktype(L, index, LUA_TTABLE);
  lua_pushnil(L);
  while (lua_next(L, index)) {
    const char *const *name;
    lua_pop(L, 1);
    if (lua_type(L, -1) != LUA_TSTRING) continue;
    for (name = names; *name != NULL; name++)
      if (strcmp(*name, lua_tostring(L, -1)) == 0) break;
    if (*name == NULL)
      luaL_argerror(
          L, index,
          lua_pushfstring(L, "unknown option '%s'", lua_tostring(L, -1)));
  }
}

/* Failing to set one does not undo a connection. */
void vgL_applyoptions(lua_State *L, vg_io_t *io, int index) {
  int seconds;

  if (lua_isnoneornil(L, index) || io->kind != VG_IO_TCP) return;
  if (lua_getfield(L, index, "nodelay") != LUA_TNIL)
    uv_tcp_nodelay(&io->uv.tcp, lua_toboolean(L, -1));
  lua_getfield(L, index, "keepalive");
  seconds = vgL_tokeepalive(L, -1);
  if (seconds > 0) uv_tcp_keepalive(&io->uv.tcp, 1, (unsigned)seconds);
  lua_pop(L, 2);
}

/* }================================================================= */

const luaL_Reg vgL_socket_methods[] = {{"fd", io_fd},
                                       {"sockname", io_sockname},
                                       {"peername", io_peername},
                                       {"setoption", io_setoption},
                                       {"getoption", io_getoption},
                                       {NULL, NULL}};
