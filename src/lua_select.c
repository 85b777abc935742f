/*
** lua_select.c: one wait over anything.
**
** stack: cases, case 1, ..., case n [, values to send...].  The cases lie on
** the stack so that their objects have an index while they wait.
*/

#include "lua_internal.h"

static uint64_t next_random(vgL_state_t *S) { /* xorshift64 */
  uint64_t x = S->random;
  x ^= x << 13;
  x ^= x >> 7;
  x ^= x << 17;
  return S->random = x;
}

/* The wait ended: the cases that lost hear of it. */
static void abandon_others(lua_State *L, vgL_state_t *S, int n, int chosen) {
  int i;
  for (i = 1; i <= n; i++)
    if (i != chosen) vgL_abandon(L, S, i + 1);
}

/* Returns index, values... or index, nil, error for case `chosen`. */
static int choose(lua_State *L, vgL_state_t *S, int n, int chosen, int status,
                  intptr_t value) {
  int type, count;
  vg_event_t *event = vgL_toevent(L, S, chosen + 1, &type);

  count = S->types[type]->collect(L, S, chosen + 1, event, status, value);
  if (count == VGL_RAISE) {
    lua_pushnil(L);
    lua_insert(L, -2);
    count = 2;
  }
  luaL_checkstack(L, 8, "too many results");
  lua_pushinteger(L, chosen);
  lua_insert(L, -(count + 1));
  {
    int top = lua_gettop(L);
    abandon_others(L, S, n, chosen);
    lua_settop(L, top);
  }
  return count + 1;
}

static int select_done(lua_State *L, int status, lua_KContext n) {
  vgL_state_t *S = VGL_S(L);
  vg_waker_t *w = &vgL_self(S)->waker;

  VG_UNUSED(status);
  if (w->ordinal == VG_ORDINAL_NONE) { /* cancelled, stuck, not started */
    abandon_others(L, S, (int)n, 0);
    vgL_woken(L, S);
    vgL_pusherror(L, NULL, w->error, NULL);
    return lua_error(L);
  }
  return choose(L, S, (int)n, w->ordinal + 1, w->error, w->value);
}

/* vigil.select{ case, ... [, default = true] } --> index, values... */
static int l_select(lua_State *L) {
  vgL_state_t *S = VGL_S(L);
  vg_coroutine_t *co;
  int n, i, ready = 0, chosen = 0, has_default, type;

  luaL_checktype(L, 1, LUA_TTABLE);
  lua_settop(L, 1);
  co = vgL_enter(L, S, "select");
  lua_getfield(L, 1, "default");
  has_default = lua_toboolean(L, -1);
  lua_pop(L, 1);
  n = (int)luaL_len(L, 1);
  luaL_argcheck(L, n < VG_ORDINAL_NONE, 1, "too many cases");
  luaL_argcheck(L, n > 0 || has_default, 1, "no cases to wait for");
  luaL_checkstack(L, 2 * n + 20, "too many cases");
  for (i = 1; i <= n; i++) {
    lua_geti(L, 1, i);
    if (vgL_toevent(L, S, -1, &type) != NULL) continue;
    if (luaL_getmetafield(L, -1, "__await") == LUA_TNIL)
      return luaL_argerror(
          L, 1,
          lua_pushfstring(L, "case %d: awaitable expected, got %s", i,
                          luaL_typename(L, -1)));
    lua_pop(L, 1);
  }
  for (i = 1; i <= n; i++) {
    if (vgL_toawaitable(L, S, i + 1, 1, &type) != NULL) continue;
    abandon_others(L, S, i - 1, 0);
    return lua_error(L);
  }
  for (i = 1; i <= n; i++) {
    vgL_toevent(L, S, i + 1, &type);
    if (vgL_makeroom(L, i + 1, type, n)) i = 0; /* all of them again */
  }
  /* Fair: each of the ready cases is as likely as the others. */
  for (i = 1; i <= n; i++) {
    vg_event_t *event = vgL_toevent(L, S, i + 1, &type);
    if (!vgL_isready(L, S, i + 1, type, event)) continue;
    if (next_random(S) % (uint64_t)++ready == 0) chosen = i;
  }
  if (ready > 0) return vgL_ready(L, S, co, choose(L, S, n, chosen, 0, 0));
  if (has_default) {
    abandon_others(L, S, n, 0);
    lua_pushnil(L);
    return vgL_ready(L, S, co, 1);
  }
  vg_waker_new(co);
  for (i = 1; i <= n; i++) {
    vg_event_t *event = vgL_toevent(L, S, i + 1, &type);
    int err = vgL_subscribe(L, S, i + 1, type, event, co);
    if (err < 0) {
      vg_waker_clean(co);
      vgL_pusherror(L, NULL, err, NULL);
      return lua_error(L);
    }
  }
  return vgL_park(L, S, co, n, select_done);
}

static const luaL_Reg functions[] = {{"select", l_select}, {NULL, NULL}};

void vgL_openselect(lua_State *L, vgL_state_t *S) {
  S->random = uv_hrtime() | 1;
  vgL_setfuncs(L, functions);
}
