/*
** lua_poll.c: vigil.poll.
*/

#include <limits.h>
#include <stdio.h>

#include "events.h"
#include "lua_internal.h"

enum { OWNER = 1, USERVALUES = 1 }; /* the object that the descriptor is of */

static int to_descriptor(lua_Integer fd) {
  return fd >= 0 && fd <= INT_MAX ? (int)fd : -1;
}

/* Whether the object at index has such a method; pushes it. */
static int find_method(lua_State *L, int index, const char *name) {
  if (!lua_istable(L, index)) {
    if (luaL_getmetafield(L, index, "__index") == LUA_TNIL) return 0;
    lua_pop(L, 1);
  }
  if (lua_getfield(L, index, name) == LUA_TFUNCTION) return 1;
  lua_pop(L, 1);
  return 0;
}

/* An integer, a Lua file, or an object with a method fd (or, as in luasocket,
** getfd).  -1: a closed object. */
static int check_descriptor(lua_State *L, int index) {
  luaL_Stream *file;
  int fd, isnum;

  if (lua_type(L, index) == LUA_TNUMBER)
    return to_descriptor(luaL_checkinteger(L, index));
  file = luaL_testudata(L, index, LUA_FILEHANDLE);
  if (file != NULL) return file->closef != NULL ? fileno(file->f) : -1;
  if (lua_type(L, index) == LUA_TSTRING ||
      !(find_method(L, index, "fd") || find_method(L, index, "getfd")))
    return luaL_typeerror(L, index, "descriptor, file or object with fd()");
  lua_pushvalue(L, index);
  lua_call(L, 1, 1);
  fd = to_descriptor(lua_tointegerx(L, -1, &isnum));
  lua_pop(L, 1);
  return isnum ? fd : -1;
}

static int bit_of(char letter) {
  switch (letter) {
    case 'r': return UV_READABLE;
    case 'w': return UV_WRITABLE;
    case 'd': return UV_DISCONNECT;
    case 'p': return UV_PRIORITIZED;
    default: return 0;
  }
}

static int check_mask(lua_State *L, int index) {
  const char *text = luaL_checkstring(L, index), *at;
  int mask = 0;

  for (at = text; bit_of(*at) != 0; at++) mask |= bit_of(*at);
  if (mask == 0 || *at != '\0')
    luaL_argerror(L, index,
                  lua_pushfstring(L,
                                  "mask: letters of 'rwdp' expected, got "
                                  "'%s'",
                                  text));
  return mask;
}

static int open_proxy(vg_scheduler_t *s, int fd, int mask,
                      vg_poll_proxy_t **proxy) {
  vg_poll_t *poll;
  int err = vg_poll_open(s, fd, 0, &poll);
  if (err < 0) return err;
  err = vg_poll_proxy_new(poll, mask, proxy);
  vg_event_release(&poll->event);
  return err;
}

/* vigil.poll(descriptor, mask) --> poll | nil, err */
static int l_poll(lua_State *L) {
  vgL_state_t *S = VGL_S(L);
  vg_poll_proxy_t *proxy;
  int fd, mask, err;

  vgL_checkopen(L, S);
  lua_settop(L, 2);
  mask = check_mask(L, 2);
  fd = check_descriptor(L, 1);
  err = open_proxy(S->sched, fd, mask, &proxy);
  if (err < 0 && vgL_scarce(L, S, err))
    err = open_proxy(S->sched, fd, mask, &proxy);
  if (err < 0) return vgL_fail(L, err, "poll descriptor %d", fd);
  vgL_pushbox(L, S, VGL_POLL, &proxy->event, USERVALUES);
  lua_pushvalue(L, 1); /* so that it is not collected, and closed, meanwhile */
  lua_setiuservalue(L, -2, OWNER);
  return 1;
}

/* poll:close() */
static int poll_close(lua_State *L) {
  vg_poll_proxy_close(vgL_check(L, VGL_S(L), 1, VGL_POLL));
  lua_pushnil(L);
  lua_setiuservalue(L, 1, OWNER);
  return 0;
}

static int poll_collect(lua_State *L, vgL_state_t *S, int index,
                        vg_event_t *event, int status, intptr_t value) {
  vg_poll_proxy_t *proxy = (vg_poll_proxy_t *)event;
  char text[5];

  VG_UNUSED(S);
  VG_UNUSED(index);
  if (value == 0) {
    if (status == 0) status = proxy->error;
    if (status == VG_ECLOSED)
      vgL_pusherror(L, NULL, status, "the poll is closed");
    else
      vgL_pushioerror(L, status, "poll descriptor %d", proxy->poll->fd);
    return VGL_RAISE;
  }
  lua_pushstring(L, vg_poll_letters((int)value, text));
  return 1;
}

static int poll_subscribe(lua_State *L, vgL_state_t *S, int index,
                          vg_event_t *event, vg_coroutine_t *co) {
  int err = vg_poll_proxy_prepare((vg_poll_proxy_t *)event);
  VG_UNUSED(index);
  if (err < 0 && vgL_scarce(L, S, err))
    err = vg_poll_proxy_prepare((vg_poll_proxy_t *)event);
  return err < 0 ? err : vg__resume_when_owned(co, event);
}

/* A closed poll is ready, to say so. */
static int poll_is_ready(lua_State *L, vgL_state_t *S, int index,
                         vg_event_t *event) {
  VG_UNUSED(L);
  VG_UNUSED(S);
  VG_UNUSED(index);
  return (event->flags & VG_EVENT_CLOSED) != 0;
}

static const vgL_type_t type = {
    .name = "vigil.poll",
    .is_box = 1,
    .collect = poll_collect,
    .subscribe = poll_subscribe,
    .is_ready = poll_is_ready,
};

static const luaL_Reg methods[] = {{"close", poll_close}, {NULL, NULL}};

static const luaL_Reg metamethods[] = {{"__close", poll_close}, {NULL, NULL}};

static const luaL_Reg functions[] = {{"poll", l_poll}, {NULL, NULL}};

void vgL_openpoll(lua_State *L, vgL_state_t *S) {
  vgL_newtype(L, S, VGL_POLL, &type, methods, metamethods);
  vgL_setfuncs(L, functions);
}
