/*
** lua_signal.c: vigil.signal.
*/

#include "events.h"
#include "lua_internal.h"

static int check_signal(lua_State *L, int index) {
  const char *name;
  int signum;

  if (lua_type(L, index) == LUA_TNUMBER) {
    lua_Integer number = luaL_checkinteger(L, index);
    return number < 0 || number > 1024 ? 0 : (int)number;
  }
  name = luaL_checkstring(L, index);
  signum = vg_signal_number(name);
  if (signum == 0)
    luaL_argerror(L, index,
                  lua_pushfstring(L, "no signal is called '%s'", name));
  return signum;
}

/* vigil.signal(name | number) --> signal | nil, err */
static int l_signal(lua_State *L) {
  vgL_state_t *S = VGL_S(L);
  int signum = check_signal(L, 1);
  vg_signal_t *signal;
  char name[24];
  int err;

  vgL_checkopen(L, S);
  err = vg_signal_new(S->sched, signum, &signal);
  if (err < 0 && vgL_scarce(L, S, err))
    err = vg_signal_new(S->sched, signum, &signal);
  if (err < 0)
    return vgL_fail(L, err, "signal %s", vg_signal_name(signum, name));
  vgL_pushbox(L, S, VGL_SIGNAL, &signal->event, 0);
  return 1;
}

/* signal:close() */
static int signal_close(lua_State *L) {
  vg_signal_close(vgL_check(L, VGL_S(L), 1, VGL_SIGNAL));
  return 0;
}

/* Takes what has arrived: name, count.  Another waiter that was woken by the
** same may have taken it before; then it is what this one was told. */
static int signal_collect(lua_State *L, vgL_state_t *S, int index,
                          vg_event_t *event, int status, intptr_t value) {
  vg_signal_t *signal = (vg_signal_t *)event;
  size_t count;
  char name[24];

  VG_UNUSED(S);
  VG_UNUSED(index);
  if (status < 0 || (value == 0 && (event->flags & VG_EVENT_CLOSED))) {
    vgL_pusherror(L, NULL, VG_ECLOSED, "the signal is closed");
    return VGL_RAISE;
  }
  count = vg__tally_take(&signal->tally);
  lua_pushstring(L, vg_signal_name(signal->signum, name));
  lua_pushinteger(L, (lua_Integer)(count > 0 ? count : (size_t)value));
  return 2;
}

static int signal_subscribe(lua_State *L, vgL_state_t *S, int index,
                            vg_event_t *event, vg_coroutine_t *co) {
  VG_UNUSED(L);
  VG_UNUSED(S);
  VG_UNUSED(index);
  return vg__resume_when_owned(co, event);
}

/* A closed signal is ready, to say so. */
static int signal_is_ready(lua_State *L, vgL_state_t *S, int index,
                           vg_event_t *event) {
  VG_UNUSED(L);
  VG_UNUSED(S);
  VG_UNUSED(index);
  return (event->flags & VG_EVENT_CLOSED) || vg_event_replay(event, NULL);
}

static const vgL_type_t type = {
    .name = "vigil.signal",
    .is_box = 1,
    .collect = signal_collect,
    .subscribe = signal_subscribe,
    .is_ready = signal_is_ready,
};

static const luaL_Reg methods[] = {{"close", signal_close}, {NULL, NULL}};

static const luaL_Reg metamethods[] = {{"__close", signal_close}, {NULL, NULL}};

static const luaL_Reg functions[] = {{"signal", l_signal}, {NULL, NULL}};

void vgL_opensignal(lua_State *L, vgL_state_t *S) {
  vgL_newtype(L, S, VGL_SIGNAL, &type, methods, metamethods);
  vgL_setfuncs(L, functions);
}
