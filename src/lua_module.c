/*
** lua_module.c: the module vigil.core: one scheduler for each Lua state.
*/

#include <string.h>

#include "lua_internal.h"

#if defined(__GNUC__)
#define VGL_EXPORT __attribute__((visibility("default")))
#elif defined(_WIN32)
#define VGL_EXPORT __declspec(dllexport)
#else
#define VGL_EXPORT
#endif

/* How long closing a state waits for worker threads, in milliseconds. */
#define CLOSE_BUDGET_MS 2000

/* A box that a finalizer made while the state closes has none of its own: its
** reference is given back for it. */
static void release_boxes(vg_reactor_t *r) {
  vg_link_t *link, *next;
  for (link = r->handles.next; link != &r->handles; link = next) {
    vg_event_t *event = &VG_CONTAINER(link, vg_uv_event_t, link)->event;
    next = link->next;
    if (!(event->flags & VG_EVENT_REFERENCE)) continue;
    event->flags &= ~(uint32_t)VG_EVENT_REFERENCE;
    vg_event_release(event);
  }
}

static int state__gc(lua_State *L) {
  vgL_state_t *S = lua_touserdata(L, 1);
  vg_scheduler_t *s = S->sched;

  if (s == NULL) return 0;
  if (s->live > 0 && !S->ran) {
    const char *text = lua_pushfstring(
        L, "vigil: %d coroutine(s) never ran: call vigil.run or vigil.await",
        (int)s->live);
    lua_warning(L, text, 0);
  }
  if (S->failed) { /* the main chunk has not waited again */
    vgL_pushexiterror(L, S);
    vgL_reportunhandled(L, S, "in a coroutine that nobody awaited", NULL);
  }
  vg_waker_clean(&S->main);
  release_boxes(s->reactor);
  vgL_freepositions(S);
  vg__free(s, S->recycled, S->recycled_size * sizeof *S->recycled);
  S->recycled = NULL;
  S->sched = NULL; /* from here on every call says: closed */
  vg_scheduler_free(s, CLOSE_BUDGET_MS);
  return 0;
}

static int new_table_ref(lua_State *L) {
  lua_newtable(L);
  return luaL_ref(L, LUA_REGISTRYINDEX);
}

/* Its finalizer is set before anything that can be collected with it: so it
** runs last. */
static vgL_state_t *new_state(lua_State *L) {
  vgL_state_t *S = lua_newuserdatauv(L, sizeof *S, 0);
  void *alloc_data;
  lua_Alloc alloc = lua_getallocf(L, &alloc_data);
  vg_host_t host;

  memset(S, 0, sizeof *S);
  lua_createtable(L, 0, 1);
  lua_pushcfunction(L, state__gc);
  lua_setfield(L, -2, "__gc");
  lua_setmetatable(L, -2);
  vgL_setstate(L);
  lua_rawgeti(L, LUA_REGISTRYINDEX, LUA_RIDX_MAINTHREAD);
  S->L = lua_tothread(L, -1);
  lua_pop(L, 1);
  S->active = S->from = S->L;
  S->threads_ref = new_table_ref(L);
  S->misc_ref = new_table_ref(L);
  lua_rawgeti(L, LUA_REGISTRYINDEX, S->misc_ref);
  lua_newtable(L);
  lua_setfield(L, -2, "main"); /* the extras of the main chunk */
  S->aside = lua_newthread(L);
  lua_setfield(L, -2, "aside");
  lua_pop(L, 1);
  vgL_inithost(S, &host);
  S->sched = vg_scheduler_new(NULL, alloc, alloc_data, &host);
  if (S->sched == NULL) luaL_error(L, "vigil: no memory for a scheduler");
  vg_coroutine_init(&S->main, S->sched, &vgL_main_methods,
                    VG_EVENT_NO_FREE | VG_EVENT_LUA_OBJECT);
  S->main.flags |= VG_CO_MAIN | VG_CO_STARTED | VG_CO_EXTRAS;
  S->main.state = VG_COROUTINE_RUNNING;
  S->main.thread = S->L;
  S->sched->next_id = 0;
  return S;
}

VGL_EXPORT int luaopen_vigil_core(lua_State *L);

int luaopen_vigil_core(lua_State *L) {
  vgL_state_t *S;

  luaL_checkversion(L);
  if (uv_version() < 0x012c00)
    return luaL_error(L, "vigil needs libuv 1.44 or later, found %s",
                      uv_version_string());
  S = vgL_get(L);
  if (S != NULL) { /* package.loaded was cleared: it is the same module */
    lua_rawgeti(L, LUA_REGISTRYINDEX, S->misc_ref);
    lua_getfield(L, -1, "module");
    return 1;
  }
  S = new_state(L);
  lua_newtable(L);
  vgL_openerror(L, S);
  vgL_openawait(L, S);
  vgL_opencotype(L, S);
  vgL_opencoroutine(L, S);
  vgL_openaware(L, S);
  vgL_openblocks(L, S);
  vgL_openrun(L, S);
  vgL_openfuture(L, S);
  vgL_openchannel(L, S);
  vgL_openselect(L, S);
  vgL_opengather(L, S);
  vgL_openscope(L, S);
  vgL_openreport(L, S);
  vgL_opentimer(L, S);
  vgL_openpoll(L, S);
  vgL_opensignal(L, S);
  vgL_opentrigger(L, S);
  vgL_openio(L, S);
  vgL_openlisten(L, S);
  lua_pushstring(L, vg_version());
  lua_setfield(L, -2, "_VERSION");
  lua_rawgeti(L, LUA_REGISTRYINDEX, S->misc_ref);
  lua_pushvalue(L, -2);
  lua_setfield(L, -2, "module");
  lua_pop(L, 1);
  return 1;
}
