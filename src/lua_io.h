/*
** lua_io.h: what lua_io.c, lua_connect.c and lua_listen.c share.
*/

#ifndef VG_LUA_IO_H
#define VG_LUA_IO_H

#include "io.h"
#include "lua_internal.h"

#if defined(__GNUC__)
#pragma GCC visibility push(hidden)
#endif

static inline vg_io_t *vgL_checkio(lua_State *L, vgL_state_t *S, int index) {
  return vgL_check(L, S, index, VGL_IO);
}

/* A new handle, on the stack: 0, or an error and nothing.  Raises. */
int vgL_newio(lua_State *L, vgL_state_t *S, int kind, vg_io_t **result);
/* Pushes nil and the error of an operation on a handle; returns 2. */
int vgL_failio(lua_State *L, const vg_io_t *io, int err, const char *what);
/* A wait ended without result.  Pushes nil and the error; returns 2. */
int vgL_failwait(lua_State *L, vgL_state_t *S, int err, int token,
                 const char *what, const char *where);
/* Whether a wait that ended with `err` was ended by its token. */
static inline int vgL_istokenerror(int err, const vg_waker_t *waker) {
  return err == VG_ETOKEN ||
         (err == UV_ETIMEDOUT && waker->ordinal == VG_ORDINAL_NONE);
}
/* Options of a connection that is open: nil, or a table with others in it. */
void vgL_applyoptions(lua_State *L, vg_io_t *io, int index);
/* A field of the options at `index` (nil: none), pushed. */
int vgL_optfield(lua_State *L, int index, const char *name);
/* Raises for a field that is not in the list. */
void vgL_checkoptions(lua_State *L, int index, const char *const names[]);
/* Seconds of keepalive: 0 for nil and false.  Pops it. */
int vgL_tokeepalive(lua_State *L, int index);
int vgL_checkport(lua_State *L, int index);
/* A number of bytes at `index`, perhaps infinite; `name`d in the error about
** `argument`. */
size_t vgL_checksize(lua_State *L, int index, int argument, const char *name);

extern const luaL_Reg vgL_socket_methods[]; /* lua_socket.c */

void vgL_openconnect(lua_State *L, vgL_state_t *S);

#if defined(__GNUC__)
#pragma GCC visibility pop
#endif

#endif
