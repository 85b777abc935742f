/*
** lua_error.c: the error object, and the only place that makes one.
**
** A table { kind, code, message, cause, errors, traceback, ... } whose
** tostring is one line: "CODE: message".
*/

#include <stdarg.h>
#include <string.h>

#include "lua_internal.h"

static const char *kind_of(int err) {
  switch (err) {
    case UV_ECANCELED:
    case VG_ETOKEN: return "cancelled";
    case VG_ECLOSED: return "closed";
    case VG_EDEADLOCK: return "deadlock";
    case UV_EBUSY: return "busy";
    case UV_ENOMEM: return "memory";
    default: break;
  }
  if (err <= UV_EAI_ADDRFAMILY && err >= UV_EAI_PROTOCOL) return "dns";
  return "io";
}

void vgL_pusherror(lua_State *L, const char *kind, int err,
                   const char *message) {
  vgL_state_t *S = vgL_get(L);

  luaL_checkstack(L, 4, NULL);
  lua_createtable(L, 0, 3);
  lua_pushstring(L, kind != NULL ? kind : kind_of(err));
  lua_setfield(L, -2, "kind");
  lua_pushstring(L, vg_error_name(err));
  lua_setfield(L, -2, "code");
  lua_pushstring(L, message != NULL ? message : vg_error_message(err));
  lua_setfield(L, -2, "message");
  lua_rawgeti(L, LUA_REGISTRYINDEX, S->error_ref);
  lua_setmetatable(L, -2);
}

static void push_io_error(lua_State *L, int err, const char *format,
                          va_list arguments) {
  luaL_checkstack(L, 4, NULL);
  lua_pushfstring(L, "%s (", vg_error_message(err));
  lua_pushvfstring(L, format, arguments);
  lua_pushliteral(L, ")");
  lua_concat(L, 3);
  vgL_pusherror(L, NULL, err, lua_tostring(L, -1));
  lua_remove(L, -2);
}

void vgL_pushioerror(lua_State *L, int err, const char *format, ...) {
  va_list arguments;
  va_start(arguments, format);
  push_io_error(L, err, format, arguments);
  va_end(arguments);
}

int vgL_fail(lua_State *L, int err, const char *format, ...) {
  va_list arguments;
  lua_pushnil(L);
  if (format == NULL) {
    vgL_pusherror(L, NULL, err, NULL);
    return 2;
  }
  va_start(arguments, format);
  push_io_error(L, err, format, arguments);
  va_end(arguments);
  return 2;
}

/* The error object at the top gets the token and what it gave. */
static void add_token(lua_State *L, vgL_state_t *S, int token) {
  int type, n, top;
  vg_event_t *event = vgL_toevent(L, S, token, &type);

  if (event == NULL) return;
  top = lua_gettop(L);
  lua_pushvalue(L, token);
  lua_setfield(L, top, "token");
  /* Only what keeps its outcome: a token is watched, nothing is taken. */
  if (type != VGL_COROUTINE && type != VGL_FUTURE && type != VGL_WAKER) return;
  if (!vg_event_replay(event, NULL)) return;
  event->flags |= VG_EVENT_ERROR_CAUGHT;
  n = S->types[type]->collect(L, S, token, event, 0, 0);
  if (n == VGL_RAISE) lua_setfield(L, top, "cause");
  lua_settop(L, top);
}

void vgL_pushtokenerror(lua_State *L, vgL_state_t *S, int err, int token) {
  int type = -1;
  vg_event_t *event = token > 0 ? vgL_toevent(L, S, token, &type) : NULL;

  if (err == UV_ETIMEDOUT || /* a timer that was closed has no due time */
      (type == VGL_TIMER && ((vg_timer_t *)event)->due_ns != UINT64_MAX)) {
    vgL_pusherror(L, "timeout", UV_ETIMEDOUT, "timed out");
  } else {
    vgL_pusherror(L, "cancelled", VG_ETOKEN, "ended by its token");
  }
  if (event != NULL) add_token(L, S, token);
}

int vgL_failtoken(lua_State *L, vgL_state_t *S, int err, int token) {
  lua_pushnil(L);
  if (err == UV_ETIMEDOUT || err == VG_ETOKEN)
    vgL_pushtokenerror(L, S, err, token);
  else
    vgL_pusherror(L, NULL, err, NULL);
  return 2;
}

const char *vgL_errorkind(lua_State *L, vgL_state_t *S, int index) {
  const char *kind;
  const void *mt;

  if (lua_type(L, index) != LUA_TTABLE || !lua_getmetatable(L, index))
    return NULL;
  mt = lua_topointer(L, -1);
  lua_pop(L, 1);
  if (mt != S->error_metatable) return NULL;
  lua_getfield(L, index, "kind");
  kind = lua_tostring(L, -1);
  lua_pop(L, 1); /* the object keeps it */
  return kind;
}

void vgL_checkreason(lua_State *L, vgL_state_t *S, int index) {
  const char *kind;
  if (lua_isnoneornil(L, index) || lua_type(L, index) == LUA_TSTRING) return;
  kind = vgL_errorkind(L, S, index);
  if (kind == NULL || strcmp(kind, "cancelled") != 0)
    luaL_argerror(L, index,
                  "reason: string or an error of kind 'cancelled' expected");
}

void vgL_pushreason(lua_State *L, int index) {
  if (lua_type(L, index) == LUA_TTABLE)
    lua_pushvalue(L, index);
  else
    vgL_pusherror(L, NULL, UV_ECANCELED, luaL_optstring(L, index, "cancelled"));
}

static int error__tostring(lua_State *L) {
  lua_settop(L, 1);
  luaL_checktype(L, 1, LUA_TTABLE);
  lua_getfield(L, 1, "code");
  lua_getfield(L, 1, "message");
  lua_pushfstring(L, "%s: %s",
                  lua_type(L, 2) == LUA_TSTRING ? lua_tostring(L, 2) : "?",
                  lua_type(L, 3) == LUA_TSTRING ? lua_tostring(L, 3) : "?");
  return 1;
}

/* vigil.is_error(value [, kind]) --> boolean */
static int l_is_error(lua_State *L) {
  const char *wanted = luaL_optstring(L, 2, NULL);
  const char *kind;
  luaL_checkany(L, 1);
  kind = vgL_errorkind(L, VGL_S(L), 1);
  lua_pushboolean(L, kind != NULL && (wanted == NULL || !strcmp(kind, wanted)));
  return 1;
}

/* core.new_error(kind, code, message) --> error, for the Lua layer */
static int l_new_error(lua_State *L) {
  vgL_state_t *S = VGL_S(L);
  luaL_checkstring(L, 1);
  luaL_checkstring(L, 2);
  luaL_checkstring(L, 3);
  lua_createtable(L, 0, 3);
  lua_pushvalue(L, 1);
  lua_setfield(L, -2, "kind");
  lua_pushvalue(L, 2);
  lua_setfield(L, -2, "code");
  lua_pushvalue(L, 3);
  lua_setfield(L, -2, "message");
  lua_rawgeti(L, LUA_REGISTRYINDEX, S->error_ref);
  lua_setmetatable(L, -2);
  return 1;
}

static const luaL_Reg functions[] = {
    {"is_error", l_is_error}, {"new_error", l_new_error}, {NULL, NULL}};

void vgL_openerror(lua_State *L, vgL_state_t *S) {
  luaL_newmetatable(L, "vigil.error");
  lua_pushcfunction(L, error__tostring);
  lua_setfield(L, -2, "__tostring");
  S->error_metatable = lua_topointer(L, -1);
  S->error_ref = luaL_ref(L, LUA_REGISTRYINDEX);
  vgL_setfuncs(L, functions);
}
