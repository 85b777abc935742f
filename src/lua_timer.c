/*
** lua_timer.c: vigil.timer and vigil.timeout.
*/

#include "lua_internal.h"

typedef struct timer_object {
  vg_timer_t timer;
  int is_timeout; /* awaited by itself it raises; cancel() and close() */
} timer_object_t;

static timer_object_t *new_timer(lua_State *L, vgL_state_t *S, double seconds,
                                 double period, int is_timeout) {
  timer_object_t *t = vgL_newobject(L, S, VGL_TIMER, sizeof *t, 0);
  double ns = period * 1e9;
  uint64_t period_ns = 0;
  if (period > 0)
    period_ns = ns < 1 ? 1 : ns >= 9e18 ? INT64_MAX : (uint64_t)ns;
  vg_timer_init(&t->timer, S->sched, vg__deadline(seconds), period_ns,
                VG_EVENT_LUA_OBJECT | VG_EVENT_NO_FREE);
  t->is_timeout = is_timeout;
  if (is_timeout) t->timer.status = UV_ETIMEDOUT;
  return t;
}

/* vigil.timer(seconds [, period]) --> timer */
static int l_timer(lua_State *L) {
  vgL_state_t *S = VGL_S(L);
  double seconds = vgL_checkseconds(L, 1, "seconds");
  double period = lua_isnoneornil(L, 2) ? 0 : vgL_checkseconds(L, 2, "period");
  if (!lua_isnoneornil(L, 2))
    luaL_argcheck(L, period > 0, 2, "period: must be above 0");
  vgL_checkopen(L, S);
  new_timer(L, S, seconds, period, 0);
  return 1;
}

/* vigil.timeout(seconds) --> token */
static int l_timeout(lua_State *L) {
  vgL_state_t *S = VGL_S(L);
  double seconds = vgL_checkseconds(L, 1, "seconds");
  vgL_checkopen(L, S);
  new_timer(L, S, seconds, 0, 1);
  return 1;
}

/* vigil.now() --> seconds of a monotonic clock */
static int l_now(lua_State *L) {
  lua_pushnumber(L, (lua_Number)uv_hrtime() / 1e9);
  return 1;
}

/* timer:close(), timer:cancel() */
static int timer_close(lua_State *L) {
  timer_object_t *t = vgL_check(L, VGL_S(L), 1, VGL_TIMER);
  vg_timer_close(&t->timer);
  return 0;
}

static int timer_collect(lua_State *L, vgL_state_t *S, int index,
                         vg_event_t *event, int status, intptr_t value) {
  timer_object_t *t = (timer_object_t *)event;
  uint64_t ticks = (uint64_t)value;

  VG_UNUSED(S);
  VG_UNUSED(index);
  if (status == VG_ECLOSED || t->timer.due_ns == UINT64_MAX) {
    vgL_pusherror(L, NULL, VG_ECLOSED, "the timer is closed");
    return VGL_RAISE;
  }
  if (t->is_timeout) {
    vgL_pusherror(L, "timeout", UV_ETIMEDOUT, "timed out");
    return VGL_RAISE;
  }
  if (ticks == 0) ticks = vg_timer_ticks(&t->timer, uv_hrtime());
  lua_pushinteger(L, (lua_Integer)ticks);
  return 1;
}

/* A closed timer is ready, to say so. */
static int timer_is_ready(lua_State *L, vgL_state_t *S, int index,
                          vg_event_t *event) {
  VG_UNUSED(L);
  VG_UNUSED(S);
  VG_UNUSED(index);
  return (event->flags & VG_EVENT_CLOSED) || vg_event_replay(event, NULL);
}

static const vgL_type_t type = {
    .name = "vigil.timer",
    .collect = timer_collect,
    .is_ready = timer_is_ready,
};

static const luaL_Reg methods[] = {
    {"close", timer_close}, {"cancel", timer_close}, {NULL, NULL}};

static const luaL_Reg metamethods[] = {{"__close", timer_close}, {NULL, NULL}};

static const luaL_Reg functions[] = {
    {"timer", l_timer}, {"timeout", l_timeout}, {"now", l_now}, {NULL, NULL}};

void vgL_opentimer(lua_State *L, vgL_state_t *S) {
  vgL_newtype(L, S, VGL_TIMER, &type, methods, metamethods);
  vgL_setfuncs(L, functions);
}
