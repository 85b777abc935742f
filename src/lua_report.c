/*
** lua_report.c: seeing what goes on: vigil.coroutines, vigil.dump.
*/

#include <stdio.h>

#include "lua_internal.h"

typedef struct collector {
  lua_State *L;
  vgL_state_t *S;
  lua_Integer n;
} collector_t;

/* Room for the table's entries was made before: this cannot raise. */
static void add_coroutine(vg_coroutine_t *co, void *data) {
  collector_t *c = data;
  vgL_pushcoroutine(c->L, c->S, co);
  lua_rawseti(c->L, -2, ++c->n);
}

/* vigil.coroutines() --> { every coroutine that has not ended } */
static int l_coroutines(lua_State *L) {
  vgL_state_t *S = VGL_S(L);
  collector_t c = {L, S, 0};

  vgL_checkopen(L, S);
  lua_createtable(L, (int)S->sched->live, 0);
  vg__each_coroutine(S->sched, add_coroutine, &c);
  return 1;
}

/* core.report() --> the text that vigil.dump writes */
static int l_report(lua_State *L) {
  vgL_state_t *S = VGL_S(L);
  vg_scheduler_t *s;
  luaL_Buffer buffer;
  char text[1024];
  lua_Integer i, n;

  vgL_checkopen(L, S);
  s = S->sched;
  lua_settop(L, 0);
  l_coroutines(L); /* stack: coroutines */
  n = (lua_Integer)lua_rawlen(L, 1);
  luaL_buffinit(L, &buffer);
  snprintf(text, sizeof text,
           "vigil: %zu coroutines, %zu queued, %zu active events, "
           "%u timers, %zu handles, %zu requests\n",
           s->live, s->ready.count, s->active, s->heap_count,
           s->reactor->handle_count - 1, s->reactor->request_count);
  luaL_addstring(&buffer, text);
  if (S->main.state == VG_COROUTINE_SUSPENDED) {
    vg__describe(&S->main, NULL, text, sizeof text);
    luaL_addstring(&buffer, "  ");
    luaL_addstring(&buffer, text);
    luaL_addchar(&buffer, '\n');
  }
  for (i = 1; i <= n; i++) {
    vg_coroutine_t *co;
    lua_rawgeti(L, 1, i);
    co = lua_touserdata(L, -1);
    vg__describe(co, vgL_coname(L, S, co), text, sizeof text);
    lua_pop(L, 1);
    luaL_addstring(&buffer, "  ");
    luaL_addstring(&buffer, text);
    luaL_addchar(&buffer, '\n');
  }
  luaL_pushresult(&buffer);
  return 1;
}

/* core.counts() --> { coroutines=, handles=, requests=, active=, timers= } */
static int l_counts(lua_State *L) {
  vgL_state_t *S = VGL_S(L);
  vg_scheduler_t *s;

  vgL_checkopen(L, S);
  s = S->sched;
  lua_createtable(L, 0, 5);
  lua_pushinteger(L, (lua_Integer)s->live);
  lua_setfield(L, -2, "coroutines");
  lua_pushinteger(L, (lua_Integer)s->reactor->handle_count - 1);
  lua_setfield(L, -2, "handles");
  lua_pushinteger(L, (lua_Integer)s->reactor->request_count);
  lua_setfield(L, -2, "requests");
  lua_pushinteger(L, (lua_Integer)s->active);
  lua_setfield(L, -2, "active");
  lua_pushinteger(L, (lua_Integer)s->heap_count);
  lua_setfield(L, -2, "timers");
  return 1;
}

/* core.bytes() --> what the core has allocated for itself */
static int l_bytes(lua_State *L) {
  vgL_state_t *S = VGL_S(L);
  vgL_checkopen(L, S);
  lua_pushinteger(L, (lua_Integer)S->sched->bytes);
  return 1;
}

static const luaL_Reg functions[] = {{"coroutines", l_coroutines},
                                     {"report", l_report},
                                     {"counts", l_counts},
                                     {"bytes", l_bytes},
                                     {NULL, NULL}};

void vgL_openreport(lua_State *L, vgL_state_t *S) {
  VG_UNUSED(S);
  vgL_setfuncs(L, functions);
}
