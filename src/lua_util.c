/*
** lua_util.c: arguments, userdata and metatables of the binding.
*/

#include <math.h>
#include <string.h>

#include "lua_internal.h"

/* The key of the state's userdata in the registry: its address. */
static const char state_key = 0;

void vgL_pushstate(lua_State *L) {
  lua_rawgetp(L, LUA_REGISTRYINDEX, &state_key);
}

void vgL_setstate(lua_State *L) { /* pops it */
  lua_rawsetp(L, LUA_REGISTRYINDEX, &state_key);
}

vgL_state_t *vgL_get(lua_State *L) {
  vgL_state_t *S;
  vgL_pushstate(L);
  S = lua_touserdata(L, -1);
  lua_pop(L, 1);
  return S;
}

void vgL_checkopen(lua_State *L, vgL_state_t *S) {
  if (S->sched == NULL) luaL_error(L, "vigil: the loop is closed");
}

/* A metatable's identity is its address: cheaper than its name. */
static const void *metatable_of(lua_State *L, int index) {
  const void *mt;
  if (lua_type(L, index) != LUA_TUSERDATA || !lua_getmetatable(L, index))
    return NULL;
  mt = lua_topointer(L, -1);
  lua_pop(L, 1);
  return mt;
}

static vg_event_t *event_in(vgL_state_t *S, void *userdata, int type) {
  if (S->types[type]->is_box) return *(vg_event_t **)userdata;
  return userdata;
}

vg_event_t *vgL_toevent(lua_State *L, vgL_state_t *S, int index, int *type) {
  const void *mt = metatable_of(L, index);
  int i;

  if (mt == NULL || S->sched == NULL) return NULL;
  for (i = 0; i < VGL_TYPES; i++) {
    if (S->metatables[i] == mt && S->types[i] != NULL) {
      if (type != NULL) *type = i;
      return event_in(S, lua_touserdata(L, index), i);
    }
  }
  return NULL;
}

void *vgL_checkslow(lua_State *L, vgL_state_t *S, int index, int type) {
  void *event;
  if (metatable_of(L, index) != S->metatables[type] ||
      S->metatables[type] == NULL)
    luaL_typeerror(L, index, S->types[type]->name);
  vgL_checkopen(L, S);
  event = event_in(S, lua_touserdata(L, index), type);
  if (event == NULL) luaL_argerror(L, index, "it was never opened");
  return event;
}

double vgL_checkseconds(lua_State *L, int index, const char *what) {
  lua_Number seconds;
  if (lua_type(L, index) != LUA_TNUMBER) {
    const char *text =
        lua_pushfstring(L, "%s: number of seconds expected, got %s", what,
                        luaL_typename(L, index));
    return luaL_argerror(L, index, text);
  }
  seconds = lua_tonumber(L, index);
  if (isnan(seconds) || seconds < 0)
    return luaL_argerror(
        L, index, lua_pushfstring(L, "%s: must not be negative or NaN", what));
  return (double)seconds;
}

void *vgL_newobject(lua_State *L, vgL_state_t *S, int type, size_t size,
                    int uservalues) {
  void *object = lua_newuserdatauv(L, size, uservalues);
  memset(object, 0, size);
  lua_rawgeti(L, LUA_REGISTRYINDEX, S->metatable_refs[type]);
  lua_setmetatable(L, -2);
  return object;
}

/* stack: state, type and number of uservalues, as light values */
static int new_box(lua_State *L) {
  vgL_state_t *S = lua_touserdata(L, 1);
  vgL_newobject(L, S, (int)lua_tointeger(L, 2), sizeof(vg_event_t *),
                (int)lua_tointeger(L, 3));
  return 1;
}

void vgL_pushbox(lua_State *L, vgL_state_t *S, int type, vg_event_t *event,
                 int uservalues) {
  int status;

  if (!lua_checkstack(L, 6)) {
    vg_event_release(event);
    luaL_error(L, "stack overflow");
  }
  lua_pushcfunction(L, new_box);
  lua_pushlightuserdata(L, S);
  lua_pushinteger(L, type);
  lua_pushinteger(L, uservalues);
  status = lua_pcall(L, 3, 1, 0);
  if (status != LUA_OK) {
    vg_event_release(event);
    lua_error(L);
  }
  *(vg_event_t **)lua_touserdata(L, -1) = event;
  event->flags |= VG_EVENT_REFERENCE;
}

static int box__gc(lua_State *L) {
  vgL_state_t *S = VGL_S(L);
  vg_event_t **box = lua_touserdata(L, 1);
  vg_event_t *event = *box;

  *box = NULL;
  if (event != NULL && S->sched != NULL) {
    event->flags &= ~(uint32_t)VG_EVENT_REFERENCE;
    vg_event_release(event);
  }
  return 0;
}

static int object__tostring(lua_State *L) {
  vgL_state_t *S = VGL_S(L);
  vg_event_t *event = vgL_toevent(L, S, 1, NULL);
  char text[512];

  if (event == NULL) {
    lua_pushliteral(L, "vigil object (closed)");
  } else {
    vg_event_info(event, text, sizeof text);
    lua_pushstring(L, text);
  }
  return 1;
}

/* object:is_closed() --> boolean */
static int object_is_closed(lua_State *L) {
  vg_event_t *event = vgL_toevent(L, VGL_S(L), 1, NULL);
  lua_pushboolean(L, event == NULL || (event->flags & VG_EVENT_CLOSED));
  return 1;
}

/* object:hide() --> object */
static int object_hide(lua_State *L) {
  vg_event_t *event = vgL_toevent(L, VGL_S(L), 1, NULL);
  if (event != NULL) vg_event_hide(event);
  lua_settop(L, 1);
  return 1;
}

static const luaL_Reg common_methods[] = {
    {"is_closed", object_is_closed}, {"hide", object_hide}, {NULL, NULL}};

void vgL_setfuncs(lua_State *L, const luaL_Reg *funcs) {
  vgL_pushstate(L);
  luaL_setfuncs(L, funcs, 1);
}

void vgL_newtype(lua_State *L, vgL_state_t *S, int type, const vgL_type_t *desc,
                 const luaL_Reg *methods, const luaL_Reg *metamethods) {
  luaL_newmetatable(L, desc->name); /* sets __name */
  lua_newtable(L);
  vgL_setfuncs(L, common_methods);
  if (methods != NULL) vgL_setfuncs(L, methods);
  lua_setfield(L, -2, "__index");
  vgL_pushstate(L);
  lua_pushcclosure(L, object__tostring, 1);
  lua_setfield(L, -2, "__tostring");
  if (desc->is_box) {
    vgL_pushstate(L);
    lua_pushcclosure(L, box__gc, 1);
    lua_setfield(L, -2, "__gc");
  }
  if (metamethods != NULL) vgL_setfuncs(L, metamethods);
  S->types[type] = desc;
  S->metatables[type] = lua_topointer(L, -1);
  S->metatable_refs[type] = luaL_ref(L, LUA_REGISTRYINDEX);
}

int vgL_pack(lua_State *L, int owner, int n) {
  owner = lua_absindex(L, owner);
  if (n == 0) lua_pushnil(L);
  if (n > 1) { /* stack: ..., values..., pack */
    int first = lua_gettop(L) - n + 1, i;
    lua_createtable(L, n, 1);
    lua_insert(L, first);
    for (i = n; i > 0; i--) lua_rawseti(L, first, i);
    lua_pushinteger(L, n);
    lua_setfield(L, first, "n");
  }
  lua_setiuservalue(L, owner, VGL_OUTCOME);
  return n > 1;
}

int vgL_unpack(lua_State *L, int owner, int packed) {
  lua_Integer n, i;

  lua_getiuservalue(L, owner, VGL_OUTCOME);
  if (!packed) return 1;
  lua_getfield(L, -1, "n");
  n = lua_tointeger(L, -1);
  lua_pop(L, 1);
  luaL_checkstack(L, (int)n + 1, "too many results");
  for (i = 1; i <= n; i++) lua_rawgeti(L, -(int)i, i);
  return (int)n;
}

int vgL_scarce(lua_State *L, vgL_state_t *S, int err) {
  vg_scheduler_t *s = S->sched;
  if (err != UV_EMFILE && err != UV_ENFILE && err != UV_ENOMEM) return 0;
  lua_gc(L, LUA_GCCOLLECT, 0);
  lua_gc(L, LUA_GCCOLLECT, 0); /* what finalizers let go of */
  if (S->sched != NULL && !s->reactor->turning) vg__reactor_turn(s->reactor, 0);
  return S->sched != NULL;
}
