/*
** lua_io.c: the methods of the I/O handle.
**
** A read that has to wait leaves what it wants in the handle; the bytes become
** one string when the coroutine runs again.  A write that has to wait has its
** string on its stack: the core reads from it and forgets it with the wait.
*/

#include <math.h>
#include <stdint.h>
#include <string.h>

#include "lua_io.h"

/* Pieces of a table that are written without being put together. */
#define MAX_PIECES 16

static vg_io_t *check(lua_State *L, vgL_state_t *S) {
  return vgL_checkio(L, S, 1);
}

/* The handle at 1, in a continuation. */
static vg_io_t *handle(lua_State *L) {
  return *(vg_io_t **)lua_touserdata(L, 1);
}

/* Pushes the error of an operation on a handle. */
static void push_error(lua_State *L, const vg_io_t *io, int err,
                       const char *what) {
  char peer[160];
  vg_io_peer_text(io, peer, sizeof peer);
  vgL_pushioerror(L, err, "%s %s", what, peer);
}

int vgL_failio(lua_State *L, const vg_io_t *io, int err, const char *what) {
  lua_pushnil(L);
  push_error(L, io, err, what);
  return 2;
}

int vgL_failwait(lua_State *L, vgL_state_t *S, int err, int token,
                 const char *what, const char *where) {
  if (vgL_istokenerror(err, &vgL_self(S)->waker))
    return vgL_failtoken(L, S, err, token);
  return vgL_fail(L, err, "%s %s", what, where);
}

static int fail_wait(lua_State *L, vgL_state_t *S, const vg_io_t *io, int err,
                     int token, const char *what) {
  char peer[160];
  vg_io_peer_text(io, peer, sizeof peer);
  return vgL_failwait(L, S, err, token, what, peer);
}


/*
** {== read.  stack: handle, what, token [, ...]
*/

/* How the result is given: as a method does, or as an iterator does. */
enum { METHOD, ITERATOR };

static int push_found(lua_State *L, vg_io_t *io, int err,
                      const vg_found_t *found, lua_KContext how) {
  if (err > 0) {
    lua_pushlstring(L, found->take > 0 ? vg_io_bytes(io) : "", found->take);
    vg_io_consume(io, found->take + found->skip);
    return 1;
  }
  if (err == UV_EOF && vg__buffer_length(&io->buffer) == 0) {
    lua_pushnil(L);
    return 1;
  }
  if (how == METHOD) return vgL_failio(L, io, err, "read");
  push_error(L, io, err, "read");
  return lua_error(L);
}

static int read_done(lua_State *L, int status, lua_KContext how) {
  vgL_state_t *S = VGL_S(L);
  vg_io_t *io = handle(L);
  vg_found_t found;
  int err;

  VG_UNUSED(status);
  if (vgL_self(S)->waker.error != 0) {
    int n;
    vg_io_read_done(io);
    err = vgL_woken(L, S);
    lua_settop(L, 3);
    n = fail_wait(L, S, io, err, 3, "read");
    return how == METHOD ? n : lua_error(L);
  }
  err = vg_io_look(io, &io->want, &found);
  vg_io_read_done(io);
  return push_found(L, io, err, &found, how);
}

static int do_read(lua_State *L, vgL_state_t *S, vg_io_t *io,
                   const vg_want_t *want, lua_KContext how) {
  vg_coroutine_t *co = vgL_enter(L, S, "io.read");
  vgL_token_t token = {0, NULL, 0};
  vg_found_t found;
  int err;

  if (lua_gettop(L) >= 3) vgL_opttoken(L, S, 3, &token);
  err = vg_io_look(io, want, &found);
  if (err != 0) return vgL_ready(L, S, co, push_found(L, io, err, &found, how));
  if (token.index == 0) {
    vg_waker_new(co);
  } else {
    if (vgL_tokenfired(L, S, &token)) return vgL_failtoken(L, S, VG_ETOKEN, 3);
    vgL_newwait(L, S, co, &token);
  }
  err = vg_io_wait_read(io, co, want);
  if (err < 0) {
    vg_waker_clean(co);
    return vgL_failio(L, io, err, "read");
  }
  return vgL_park(L, S, co, how, read_done);
}

size_t vgL_checksize(lua_State *L, int index, int argument, const char *name) {
  lua_Number number;
  if (lua_isinteger(L, index)) {
    lua_Integer n = lua_tointeger(L, index);
    if (n >= 0) return (size_t)n;
  } else if (lua_type(L, index) == LUA_TNUMBER) {
    number = lua_tonumber(L, index);
    if (number == (lua_Number)HUGE_VAL) return SIZE_MAX;
    if (number >= 0 && number < 9e15 &&
        number == (lua_Number)(lua_Integer)number)
      return (size_t)number;
  }
  luaL_argerror(L, argument,
                lua_pushfstring(L, "%s: a number of bytes expected, got %s",
                                name, luaL_tolstring(L, index, NULL)));
  return 0;
}

static void set_mode(lua_State *L, const vg_io_t *io, const char *mode,
                     vg_want_t *want) {
  want->keep_ends = 0;
  if (strcmp(mode, "line") == 0) {
    want->mode = VG_READ_LINE;
    want->limit = io->limits->max_line;
  } else if (strcmp(mode, "some") == 0) {
    want->mode = VG_READ_SOME;
    want->limit = SIZE_MAX;
  } else if (strcmp(mode, "all") == 0) {
    want->mode = VG_READ_ALL;
    want->limit = io->limits->max_all;
  } else {
    luaL_argerror(L, 2,
                  lua_pushfstring(L,
                                  "mode: 'some', 'line' or 'all' expected, "
                                  "got '%s'",
                                  mode));
  }
}

/* { mode, max =, keep_ends =, token = }.  The token goes to index 3. */
static void set_from_table(lua_State *L, const vg_io_t *io, vg_want_t *want) {
  static const char *const names[] = {"mode", "max", "keep_ends", "token",
                                      NULL};
  vgL_checkoptions(L, 2, names);
  if (lua_rawgeti(L, 2, 1) == LUA_TNIL) {
    lua_pop(L, 1);
    lua_getfield(L, 2, "mode");
  }
  if (lua_type(L, -1) == LUA_TNUMBER) {
    want->mode = VG_READ_EXACT;
    want->limit = vgL_checksize(L, -1, 2, "mode");
  } else {
    set_mode(L, io, luaL_optstring(L, -1, "some"), want);
    if (lua_getfield(L, 2, "max") != LUA_TNIL)
      want->limit = vgL_checksize(L, -1, 2, "max");
    lua_getfield(L, 2, "keep_ends");
    want->keep_ends = (uint8_t)lua_toboolean(L, -1);
  }
  if (lua_isnil(L, 3)) {
    lua_getfield(L, 2, "token");
    lua_replace(L, 3);
  }
  lua_settop(L, 3);
}

static void check_want(lua_State *L, const vg_io_t *io, vg_want_t *want) {
  switch (lua_type(L, 2)) {
    case LUA_TNIL:
      want->mode = VG_READ_SOME;
      want->limit = SIZE_MAX;
      break;
    case LUA_TNUMBER:
      want->mode = VG_READ_EXACT;
      want->limit = vgL_checksize(L, 2, 2, "n");
      break;
    case LUA_TTABLE: set_from_table(L, io, want); break;
    default: set_mode(L, io, luaL_checkstring(L, 2), want);
  }
}

/* handle:read([n | mode | options [, token]]) --> string | nil | nil, err */
static int io_read(lua_State *L) {
  vgL_state_t *S = VGL_S(L);
  vg_io_t *io = check(L, S);
  vg_want_t want;

  if (lua_gettop(L) == 1) {
    want.mode = VG_READ_SOME;
    want.limit = SIZE_MAX;
  } else {
    lua_settop(L, 3);
    check_want(L, io, &want);
  }
  return do_read(L, S, io, &want, METHOD);
}

/* handle:read_until(separator [, max [, token]]) --> string | nil [, err] */
static int io_read_until(lua_State *L) {
  vgL_state_t *S = VGL_S(L);
  vg_io_t *io = check(L, S);
  size_t length;
  vg_want_t want;

  want.mode = VG_READ_UNTIL;
  want.keep_ends = 0;
  want.separator = luaL_checklstring(L, 2, &length);
  luaL_argcheck(L, length > 0 && length <= UINT32_MAX, 2,
                "separator: must not be empty");
  want.separator_length = (uint32_t)length;
  want.limit = lua_isnoneornil(L, 3) ? io->limits->max_line
                                     : vgL_checksize(L, 3, 3, "max");
  lua_settop(L, 4);
  lua_remove(L, 3); /* stack: handle, separator, token */
  return do_read(L, S, io, &want, METHOD);
}

/* The iterator of lines.  Upvalues: state, handle, keep ends, max. */
static int next_line(lua_State *L) {
  vgL_state_t *S = VGL_S(L);
  vg_io_t *io;
  vg_want_t want;

  lua_settop(L, 0);
  lua_pushvalue(L, lua_upvalueindex(2));
  lua_settop(L, 3);
  io = check(L, S);
  set_mode(L, io, "line", &want);
  want.keep_ends = (uint8_t)lua_toboolean(L, lua_upvalueindex(3));
  if (!lua_isnil(L, lua_upvalueindex(4)))
    want.limit = (size_t)lua_tointeger(L, lua_upvalueindex(4));
  return do_read(L, S, io, &want, ITERATOR);
}

/* handle:lines([{ keep_ends =, max = }]) --> iterator; it raises errors */
static int io_lines(lua_State *L) {
  static const char *const names[] = {"keep_ends", "max", NULL};
  check(L, VGL_S(L));
  lua_settop(L, 2);
  if (!lua_isnil(L, 2)) vgL_checkoptions(L, 2, names);
  vgL_pushstate(L);
  lua_pushvalue(L, 1);
  vgL_optfield(L, 2, "keep_ends");
  if (vgL_optfield(L, 2, "max") != LUA_TNIL) {
    size_t max = vgL_checksize(L, -1, 2, "max");
    lua_pop(L, 1);
    lua_pushinteger(L, (lua_Integer)max);
  }
  lua_pushcclosure(L, next_line, 4);
  return 1;
}

/* }================================================================= */


/*
** {== write.  stack: handle, string, token, writer
*/

enum { WRITE_TOKEN = 3, WRITE_WRITER = 4 };

/* stack top: nil, error.  Tells how much was written. */
static int add_written(lua_State *L, size_t written) {
  lua_pushinteger(L, (lua_Integer)written);
  lua_setfield(L, -2, "written");
  return 2;
}

static int fail_write(lua_State *L, const vg_io_t *io, int err,
                      size_t written) {
  if (io->cut && err == UV_EPIPE)
    vgL_failio(L, io, err, "an earlier write was given up half-way: write");
  else
    vgL_failio(L, io, err, "write");
  return add_written(L, written);
}

static int write_done(lua_State *L, int status, lua_KContext ctx) {
  vgL_state_t *S = VGL_S(L);
  vg_io_t *io = handle(L);
  const vg_writer_t *writer = lua_touserdata(L, WRITE_WRITER);
  size_t written = writer->total - writer->left;
  int err = vgL_woken(L, S);

  VG_UNUSED(status);
  VG_UNUSED(ctx);
  if (err < 0) {
    fail_wait(L, S, io, err, WRITE_TOKEN, "write");
    return add_written(L, written);
  }
  if (writer->left > 0)
    return fail_write(
        L, io, vg__io_is_closed(io) ? VG_ECLOSED : io->write_status, written);
  lua_pushboolean(L, 1);
  return 1;
}

static void join(lua_State *L);

/* Pushes the pieces of the table at 2 and returns their number; 0: they were
** none or many, and one string is at 2 instead. */
static int push_pieces(lua_State *L, uv_buf_t *bufs, size_t *size) {
  lua_Integer n = luaL_len(L, 2);
  int i;

  if (n <= 0 || n > MAX_PIECES) {
    join(L);
    return 0;
  }
  luaL_checkstack(L, MAX_PIECES + 4, NULL);
  for (i = 0; i < n; i++) {
    int type = lua_geti(L, 2, i + 1);
    if (type != LUA_TSTRING && type != LUA_TNUMBER)
      luaL_argerror(L, 2,
                    lua_pushfstring(L, "element %d: string expected, got %s",
                                    i + 1, luaL_typename(L, -1)));
    bufs[i].base = (char *)(uintptr_t)lua_tolstring(L, -1, &bufs[i].len);
    *size += bufs[i].len;
  }
  return (int)n;
}

/* Puts the table at 2 together into one string, in its place. */
static void join(lua_State *L) {
  lua_Integer n = luaL_len(L, 2), i;
  luaL_Buffer buffer;

  luaL_buffinit(L, &buffer);
  for (i = 1; i <= n; i++) {
    int type = lua_geti(L, 2, i);
    if (type != LUA_TSTRING && type != LUA_TNUMBER)
      luaL_argerror(L, 2,
                    lua_pushfstring(L, "element %I: string expected, got %s",
                                    (LUAI_UACINT)i, luaL_typename(L, -1)));
    luaL_addvalue(&buffer);
  }
  luaL_pushresult(&buffer);
  lua_replace(L, 2);
}

/* The pieces are on top of the table: so the table may be what it likes. */
static void join_pieces(lua_State *L, int n) {
  lua_concat(L, n);
  lua_replace(L, 2);
}

/* Bytes at 2 remain after `written`.  What raises here leaves the write cut
** in two, so the write side is marked as broken until all is in place. */
static int wait_write(lua_State *L, vgL_state_t *S, vg_io_t *io,
                      vg_coroutine_t *co, const vgL_token_t *token, int pieces,
                      size_t written) {
  vg_writer_t *writer;
  size_t size;
  int err;

  if (written > 0) {
    io->cut = 1;
    io->write_status = UV_EPIPE;
  }
  if (pieces > 0) join_pieces(L, pieces);
  lua_settop(L, WRITE_TOKEN);
  writer = lua_newuserdatauv(L, sizeof *writer, 0);
  writer->data = lua_tolstring(L, 2, &size);
  writer->data += written;
  writer->left = size - written;
  writer->total = size;
  writer->wait = NULL;
  err = vg_io_queue(io, writer->data, writer->left, size);
  if (err == 0) {
    vgL_newwait(L, S, co, token);
    err = vg_io_wait_write(io, co, writer);
    if (err < 0) vg_waker_clean(co);
  }
  if (err < 0) return fail_write(L, io, err, written);
  if (written > 0) {
    io->cut = 0;
    io->write_status = 0;
  }
  if (err == 0 && writer->wait != NULL)
    return vgL_park(L, S, co, 0, write_done);
  lua_pushboolean(L, 1);
  return vgL_ready(L, S, co, 1);
}

/* handle:write(string | { string... } [, token]) --> true | nil, err */
static int io_write(lua_State *L) {
  vgL_state_t *S = VGL_S(L);
  vg_io_t *io = check(L, S);
  uv_buf_t bufs[MAX_PIECES];
  vg_coroutine_t *co;
  vgL_token_t token = {0, NULL, 0};
  size_t size = 0, written;
  int n = 1, pieces = 0, err;

  co = vgL_enter(L, S, "io.write");
  if (lua_gettop(L) > 2) {
    lua_settop(L, WRITE_TOKEN);
    vgL_opttoken(L, S, WRITE_TOKEN, &token);
  }
  if (lua_type(L, 2) == LUA_TTABLE) {
    lua_settop(L, WRITE_TOKEN);
    pieces = push_pieces(L, bufs, &size);
  }
  if (pieces > 0) {
    n = pieces;
  } else {
    bufs[0].base = (char *)(uintptr_t)luaL_checklstring(L, 2, &size);
    bufs[0].len = size;
  }
  if (token.event != NULL && vgL_tokenfired(L, S, &token))
    return vgL_failtoken(L, S, VG_ETOKEN, WRITE_TOKEN), add_written(L, 0);
  err = vg_io_write(io, bufs, (unsigned)n, size, &written);
  if (err < 0) return fail_write(L, io, err, 0);
  if (err == 0) return wait_write(L, S, io, co, &token, pieces, written);
  lua_pushboolean(L, 1);
  return vgL_ready(L, S, co, 1);
}

/* }================================================================= */


/*
** {== shutdown.  stack: handle, token
*/

static int shutdown_done(lua_State *L, int status, lua_KContext ctx) {
  vgL_state_t *S = VGL_S(L);
  vg_io_t *io = handle(L);
  int err = vgL_woken(L, S);

  VG_UNUSED(status);
  VG_UNUSED(ctx);
  if (err < 0) return fail_wait(L, S, io, err, 2, "shutdown");
  err = vg_io_shutdown(io);
  if (err < 0) return vgL_failio(L, io, err, "shutdown");
  lua_pushboolean(L, 1);
  return 1;
}

/* handle:shutdown([token]) --> true | nil, err */
static int io_shutdown(lua_State *L) {
  vgL_state_t *S = VGL_S(L);
  vg_io_t *io = check(L, S);
  vg_coroutine_t *co;
  vgL_token_t token;
  int err;

  lua_settop(L, 2);
  co = vgL_enter(L, S, "io.shutdown");
  vgL_opttoken(L, S, 2, &token);
  if (vgL_tokenfired(L, S, &token)) return vgL_failtoken(L, S, VG_ETOKEN, 2);
  err = vg_io_shutdown(io);
  if (err < 0) return vgL_failio(L, io, err, "shutdown");
  if (err > 0) {
    lua_pushboolean(L, 1);
    return vgL_ready(L, S, co, 1);
  }
  vgL_newwait(L, S, co, &token);
  err = vg_io_wait_shutdown(io, co);
  if (err < 0) {
    vg_waker_clean(co);
    return vgL_failio(L, io, err, "shutdown");
  }
  return vgL_park(L, S, co, 0, shutdown_done);
}

/* }================================================================= */


/* handle:close() */
static int io_close(lua_State *L) {
  vg_io_close(check(L, VGL_S(L)));
  return 0;
}

/* handle:abort() */
static int io_abort(lua_State *L) {
  vg_io_abort(check(L, VGL_S(L)));
  return 0;
}

/* handle:hide() --> handle */
static int io_hide(lua_State *L) {
  vg_io_hide(check(L, VGL_S(L)));
  lua_settop(L, 1);
  return 1;
}

/* handle:queued() --> bytes that were written and are still to be sent */
static int io_queued(lua_State *L) {
  lua_pushinteger(L, (lua_Integer)vg_io_queued(check(L, VGL_S(L))));
  return 1;
}

int vgL_newio(lua_State *L, vgL_state_t *S, int kind, vg_io_t **result) {
  int err = vg_io_new(S->sched, kind, result);
  if (err < 0) return err;
  vgL_pushbox(L, S, VGL_IO, &(*result)->base.event, 0);
  return 0;
}

/* await(handle) --> true, once it has been closed */
static int io_collect(lua_State *L, vgL_state_t *S, int index,
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
    .name = "vigil.io",
    .is_box = 1,
    .collect = io_collect,
};

static const luaL_Reg methods[] = {
    {"read", io_read},         {"read_until", io_read_until},
    {"lines", io_lines},       {"write", io_write},
    {"shutdown", io_shutdown}, {"close", io_close},
    {"abort", io_abort},       {"hide", io_hide},
    {"queued", io_queued},     {NULL, NULL}};

static const luaL_Reg metamethods[] = {{"__close", io_close}, {NULL, NULL}};

void vgL_openio(lua_State *L, vgL_state_t *S) {
  vg__ignore_sigpipe();
  vgL_newtype(L, S, VGL_IO, &type, methods, metamethods);
  lua_rawgeti(L, LUA_REGISTRYINDEX, S->metatable_refs[VGL_IO]);
  lua_getfield(L, -1, "__index");
  vgL_setfuncs(L, vgL_socket_methods);
  lua_pop(L, 2);
  vgL_openconnect(L, S);
}
