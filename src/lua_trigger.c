/*
** lua_trigger.c: vigil.trigger.
*/

#include "events.h"
#include "lua_internal.h"

/* vigil.trigger() --> trigger | nil, err */
static int l_trigger(lua_State *L) {
  vgL_state_t *S = VGL_S(L);
  vg_trigger_t *trigger;
  int err;

  vgL_checkopen(L, S);
  err = vg_trigger_new(S->sched, &trigger);
  if (err < 0 && vgL_scarce(L, S, err))
    err = vg_trigger_new(S->sched, &trigger);
  if (err < 0) return vgL_fail(L, err, "trigger");
  vgL_pushbox(L, S, VGL_TRIGGER, &trigger->base.event, 0);
  return 1;
}

/* trigger:fire() --> true | nil, err */
static int trigger_fire(lua_State *L) {
  int err = vg_trigger_fire(vgL_check(L, VGL_S(L), 1, VGL_TRIGGER));
  if (err < 0) {
    lua_pushnil(L);
    vgL_pusherror(L, NULL, err, "the trigger is closed");
    return 2;
  }
  lua_pushboolean(L, 1);
  return 1;
}

/* trigger:close() */
static int trigger_close(lua_State *L) {
  vg_trigger_close(vgL_check(L, VGL_S(L), 1, VGL_TRIGGER));
  return 0;
}

/* Takes what was fired: count.  Another waiter that was woken by the same may
** have taken it before; then it is what this one was told. */
static int trigger_collect(lua_State *L, vgL_state_t *S, int index,
                           vg_event_t *event, int status, intptr_t value) {
  size_t count;

  VG_UNUSED(S);
  VG_UNUSED(index);
  if (status < 0 || (value == 0 && (event->flags & VG_EVENT_CLOSED))) {
    vgL_pusherror(L, NULL, VG_ECLOSED, "the trigger is closed");
    return VGL_RAISE;
  }
  count = vg_trigger_take((vg_trigger_t *)event);
  lua_pushinteger(L, (lua_Integer)(count > 0 ? count : (size_t)value));
  return 1;
}

static int trigger_subscribe(lua_State *L, vgL_state_t *S, int index,
                             vg_event_t *event, vg_coroutine_t *co) {
  VG_UNUSED(L);
  VG_UNUSED(S);
  VG_UNUSED(index);
  return vg__resume_when_owned(co, event);
}

/* A closed trigger is ready, to say so. */
static int trigger_is_ready(lua_State *L, vgL_state_t *S, int index,
                            vg_event_t *event) {
  VG_UNUSED(L);
  VG_UNUSED(S);
  VG_UNUSED(index);
  return (event->flags & VG_EVENT_CLOSED) || vg_event_replay(event, NULL);
}

static const vgL_type_t type = {
    .name = "vigil.trigger",
    .is_box = 1,
    .collect = trigger_collect,
    .subscribe = trigger_subscribe,
    .is_ready = trigger_is_ready,
};

static const luaL_Reg methods[] = {
    {"fire", trigger_fire}, {"close", trigger_close}, {NULL, NULL}};

static const luaL_Reg metamethods[] = {{"__close", trigger_close},
                                       {NULL, NULL}};

static const luaL_Reg functions[] = {{"trigger", l_trigger}, {NULL, NULL}};

void vgL_opentrigger(lua_State *L, vgL_state_t *S) {
  vgL_newtype(L, S, VGL_TRIGGER, &type, methods, metamethods);
  vgL_setfuncs(L, functions);
}
