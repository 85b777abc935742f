/*
** lua_gather.c: the wait below the await_* family; lua/vigil/await.lua makes
** tables of what it returns.
*/

#include "lua_internal.h"

/* stack: members, need, fail_fast, token, owned, gather.  Returns the array of
** settled members in order of settling, each followed by whether it
** succeeded and its first value or error: i, ok, value, ... */
static int push_outcome(lua_State *L, vgL_state_t *S) {
  vg_gather_t *g = lua_touserdata(L, 6);
  lua_Integer out = 0;
  uint32_t k;

  lua_settop(L, 6);
  lua_createtable(L, (int)(3 * g->settled), 0);
  for (k = 0; k < g->settled; k++) {
    vg_gather_member_t *m = &g->members[g->order[k]];
    int type, n;
    lua_rawgeti(L, 1, (lua_Integer)g->order[k] + 1); /* stack: ..., 8 */
    vgL_toevent(L, S, 8, &type);
    n = S->types[type]->collect(L, S, 8, m->event, m->status, m->value);
    lua_pushinteger(L, (lua_Integer)g->order[k] + 1);
    lua_rawseti(L, 7, ++out);
    lua_pushboolean(L, n != VGL_RAISE);
    lua_rawseti(L, 7, ++out);
    if (n == VGL_RAISE) n = 1;
    if (n == 0) lua_pushnil(L), n = 1;
    lua_pushvalue(L, -n);
    lua_rawseti(L, 7, ++out);
    lua_settop(L, 7);
  }
  return 1;
}

/* Members of user-defined kinds that are still pending hear of the end. */
static void abandon_pending(lua_State *L, vgL_state_t *S) {
  vg_gather_t *g = lua_touserdata(L, 6);
  uint32_t i;
  for (i = 0; i < g->count; i++) {
    int top = lua_gettop(L);
    if (g->members[i].settled) continue;
    lua_rawgeti(L, 1, (lua_Integer)i + 1);
    vgL_abandon(L, S, top + 1);
    lua_settop(L, top);
  }
}

static int gather_done(lua_State *L, int status, lua_KContext ctx) {
  vgL_state_t *S = VGL_S(L);
  vg_waker_t *w = &vgL_self(S)->waker;

  VG_UNUSED(status);
  VG_UNUSED(ctx);
  abandon_pending(L, S);
  if (w->error != 0) {
    vgL_woken(L, S);
    if (w->error == VG_ETOKEN || w->error == UV_ETIMEDOUT)
      vgL_pushtokenerror(L, S, w->error, 4);
    else
      vgL_pusherror(L, NULL, w->error, NULL);
    return lua_error(L);
  }
  return push_outcome(L, S);
}

/* core.gather(members, need, fail_fast [, token [, owned]]) --> outcome
** owned[i]: member i is a coroutine made for this wait; it is cancelled once
** the wait is over. */
static int l_gather(lua_State *L) {
  vgL_state_t *S = VGL_S(L);
  vg_coroutine_t *co;
  vg_event_t *event;
  vg_gather_t *g;
  vgL_token_t token;
  uint32_t i, n;
  int err, type;

  luaL_checktype(L, 1, LUA_TTABLE);
  lua_settop(L, 5);
  if (!lua_isnil(L, 5)) luaL_checktype(L, 5, LUA_TTABLE);
  n = (uint32_t)lua_rawlen(L, 1);
  co = vgL_enter(L, S, "await_all");
  vgL_opttoken(L, S, 4, &token);
  g = lua_newuserdatauv(
      L, sizeof *g + n * sizeof(vg_gather_member_t) + n * sizeof(uint32_t), 0);
  vg_gather_init(g, S->sched, VG_EVENT_LUA_OBJECT);
  g->count = n;
  g->need = luaL_checkinteger(L, 2) < n ? (uint32_t)lua_tointeger(L, 2) : n;
  g->fail_fast = lua_toboolean(L, 3);
  g->members = (vg_gather_member_t *)(g + 1);
  g->order = (uint32_t *)(g->members + n);
  for (i = 0; i < n; i++) {
    lua_rawgeti(L, 1, (lua_Integer)i + 1); /* stack: ..., 7 */
    event = vgL_toawaitable(L, S, 7, 1, &type);
    if (event == NULL) {
      g->count = i; /* those before it */
      abandon_pending(L, S);
      return lua_error(L);
    }
    vg_gather_member(g, i, event);
    lua_rawseti(L, 1, (lua_Integer)i + 1);
    if (lua_isnil(L, 5)) continue;
    lua_rawgeti(L, 5, (lua_Integer)i + 1);
    g->members[i].owned = lua_toboolean(L, -1) ? 1 : 0;
    lua_pop(L, 1);
  }
  /* Those that have settled already count without any subscription. */
  for (i = 0; i < n && !vg_gather_done(g); i++) {
    event = g->members[i].event;
    lua_rawgeti(L, 1, (lua_Integer)i + 1);
    vgL_toevent(L, S, 7, &type);
    if (vgL_isready(L, S, 7, type, event)) vg_gather_ready(g, i);
    lua_settop(L, 6);
  }
  if (vg_gather_done(g)) {
    abandon_pending(L, S);
    return vgL_ready(L, S, co, push_outcome(L, S));
  }
  if (vgL_tokenfired(L, S, &token)) {
    abandon_pending(L, S);
    vgL_pushtokenerror(L, S, VG_ETOKEN, 4);
    return lua_error(L);
  }
  vgL_newwait(L, S, co, &token);
  err = vg_resume_when(co, &g->event, 0, NULL, NULL);
  if (err < 0) {
    vg_waker_clean(co);
    vgL_pusherror(L, NULL, err, NULL);
    return lua_error(L);
  }
  return vgL_park(L, S, co, 0, gather_done);
}

/* core.kind(value) --> "coroutine" | "case" | "event" | "user" | nil */
static int l_kind(lua_State *L) {
  vgL_state_t *S = VGL_S(L);
  int type;

  luaL_checkany(L, 1);
  vgL_checkopen(L, S);
  if (vgL_toevent(L, S, 1, &type) != NULL) {
    lua_pushstring(L, type == VGL_COROUTINE                        ? "coroutine"
                      : type == VGL_CHANNEL || type == VGL_SENDING ? "case"
                                                                   : "event");
  } else if (luaL_getmetafield(L, 1, "__await") != LUA_TNIL) {
    lua_pushliteral(L, "user");
  } else {
    lua_pushnil(L);
  }
  return 1;
}

static const luaL_Reg functions[] = {
    {"gather", l_gather}, {"kind", l_kind}, {NULL, NULL}};

void vgL_opengather(lua_State *L, vgL_state_t *S) {
  VG_UNUSED(S);
  vgL_setfuncs(L, functions);
}
