/*
** lua_channel.c: channels for Lua values.
**
** Slots of the buffer are the array part of a table, the channel's first
** uservalue; slot i is element i + 1.  A value that waits to be sent is on
** its sender's stack; one that was handed over, on top of its receiver's.
*/

#include "lua_internal.h"

enum { SLOTS = 1, USERVALUES = 1 };

/* The case that ch:sending(v) makes: not an event, but leads to one. */
typedef struct sending {
  vg_channel_t *channel;
} sending_t;

enum { SENDING_CHANNEL = 1, SENDING_VALUE = 2 };


/*
** {== How values move (the core calls these; nothing here can raise: stack
** space for one value more is there in every C function that waits)
*/

/* Pushes the value at `from` on L. */
static void fetch(vg_place_t from, lua_State *L) {
  lua_State *source = from.thread;
  if (from.index != 0) lua_pushvalue(source, from.index);
  if (source != L) lua_xmove(source, L, 1);
}

static void move_value(vg_channel_t *ch, vg_place_t from, vg_place_t to) {
  VG_UNUSED(ch);
  fetch(from, to.thread);
}

static void store_value(vg_channel_t *ch, vg_place_t object, uint32_t slot,
                        vg_place_t from) {
  lua_State *L = object.thread;
  VG_UNUSED(ch);
  lua_getiuservalue(L, object.index, SLOTS);
  if (from.thread == L && from.index == 0)
    lua_insert(L, -2); /* it was the top */
  else
    fetch(from, L);
  lua_rawseti(L, -2, (lua_Integer)slot + 1); /* it exists: see resize */
  lua_pop(L, 1);
}

static void load_value(vg_channel_t *ch, vg_place_t object, uint32_t slot,
                       vg_place_t to) {
  lua_State *L = object.thread;
  VG_UNUSED(ch);
  lua_getiuservalue(L, object.index, SLOTS);
  lua_rawgeti(L, -1, (lua_Integer)slot + 1);
  lua_pushboolean(L, 0); /* not nil: the slot stays */
  lua_rawseti(L, -3, (lua_Integer)slot + 1);
  lua_remove(L, -2);
  if (to.thread != L) lua_xmove(L, to.thread, 1);
}

static const vg_channel_values_t values = {move_value, store_value, load_value};

static vg_place_t at(lua_State *L, int index) {
  vg_place_t place = {L, index};
  return place;
}

/* Moves the slots to the new table on the top, which has `size` places. */
static void resize(lua_State *L, vg_channel_t *ch, int index, uint32_t size) {
  uint32_t i;

  lua_getiuservalue(L, index, SLOTS);
  for (i = 0; i < ch->count; i++) {
    lua_rawgeti(L, -1, (lua_Integer)((ch->head + i) % ch->size) + 1);
    lua_rawseti(L, -3, (lua_Integer)i + 1);
  }
  for (; i < size; i++) {
    lua_pushboolean(L, 0);
    lua_rawseti(L, -3, (lua_Integer)i + 1);
  }
  lua_pop(L, 1);
  lua_setiuservalue(L, index, SLOTS);
  vg_channel_resized(ch, size);
}

/* Slots for what is there and n values more: to store, or to come back from n
** more receivers.  True when they had to be made: then a finalizer may have
** run and used the channel.  Raises before anything is changed. */
static int reserve(lua_State *L, vg_channel_t *ch, int index, uint32_t n) {
  int made = 0;

  index = lua_absindex(L, index);
  while (vg_channel_slots_needed(ch, n) > ch->size) {
    uint32_t size = vg_channel_slots_needed(ch, n);
    if (size < 2 * ch->size) size = 2 * ch->size;
    made = 1;
    lua_createtable(L, (int)size, 0);
    if (size > ch->size && size >= vg_channel_slots_needed(ch, n))
      resize(L, ch, index, size);
    else
      lua_pop(L, 1); /* a finalizer came in between: look again */
  }
  return made;
}

/* }================================================================= */


static vg_channel_t *check(lua_State *L, vgL_state_t *S) {
  return vgL_check(L, S, 1, VGL_CHANNEL);
}

static void check_value(lua_State *L, int index) {
  luaL_checkany(L, index);
  luaL_argcheck(L, !lua_isnil(L, index), index,
                "nil cannot be sent through a channel");
}

static int fail_closed(lua_State *L) {
  lua_pushnil(L);
  vgL_pusherror(L, NULL, VG_ECLOSED, "the channel is closed");
  return 2;
}

/* How a wait ended without result. */
static int fail_wait(lua_State *L, vgL_state_t *S, int err, int token) {
  return err == VG_ECLOSED ? fail_closed(L) : vgL_failtoken(L, S, err, token);
}

/* vigil.channel([capacity = 0]) --> channel */
static int l_channel(lua_State *L) {
  vgL_state_t *S = VGL_S(L);
  lua_Integer capacity = luaL_optinteger(L, 1, 0);
  vg_channel_t *ch;

  luaL_argcheck(L, capacity >= 0 && capacity <= INT32_MAX / 2, 1,
                "capacity: out of range");
  vgL_checkopen(L, S);
  ch = vgL_newobject(L, S, VGL_CHANNEL, sizeof *ch, USERVALUES);
  vg_channel_init(ch, S->sched, (uint32_t)capacity, &values,
                  VG_EVENT_LUA_OBJECT);
  return 1;
}


/*
** {== send.  stack: channel, value, token
*/

static int send_done(lua_State *L, int status, lua_KContext ctx) {
  vgL_state_t *S = VGL_S(L);
  vg_channel_t *ch = lua_touserdata(L, 1);
  int err = vgL_woken(L, S);

  VG_UNUSED(status);
  VG_UNUSED(ctx);
  if (err == 0 && vgL_self(S)->waker.value == VG_CHANNEL_SEND) {
    reserve(L, ch, 1, 1);
    err = vg_channel_fulfil(ch, at(L, 1), at(L, 2));
  }
  if (err < 0) return fail_wait(L, S, err, 3);
  lua_pushboolean(L, 1);
  return 1;
}

/* ch:send(value [, token]) --> true | nil, err */
static int channel_send(lua_State *L) {
  vgL_state_t *S = VGL_S(L);
  vg_channel_t *ch = check(L, S);
  vg_coroutine_t *co;
  vgL_token_t token;
  int err;

  check_value(L, 2);
  lua_settop(L, 3);
  co = vgL_enter(L, S, "channel.send");
  vgL_opttoken(L, S, 3, &token);
  if (vgL_tokenfired(L, S, &token)) return vgL_failtoken(L, S, VG_ETOKEN, 3);
  reserve(L, ch, 1, 1);
  err = vg_channel_try_send(ch, at(L, 1), at(L, 2));
  if (err < 0) return fail_closed(L);
  if (err > 0) {
    lua_pushboolean(L, 1);
    return vgL_ready(L, S, co, 1);
  }
  vgL_newwait(L, S, co, &token);
  err = vg_channel_wait(ch, co, VG_CHANNEL_SEND, 2);
  if (err < 0) {
    vg_waker_clean(co);
    return vgL_fail(L, err, NULL);
  }
  return vgL_park(L, S, co, 0, send_done);
}

/* }================================================================= */


/*
** {== recv.  stack: channel, token
*/

static int recv_done(lua_State *L, int status, lua_KContext ctx) {
  vgL_state_t *S = VGL_S(L);
  int err = vgL_woken(L, S);

  VG_UNUSED(status);
  VG_UNUSED(ctx);
  if (err < 0) return fail_wait(L, S, err, 2);
  vg_channel_received(lua_touserdata(L, 1));
  return 1; /* it was handed over on the stack */
}

static int receive(lua_State *L, vgL_state_t *S, vg_channel_t *ch,
                   vg_coroutine_t *co, const vgL_token_t *token) {
  int err;

  do { /* nothing may come between the last look and the wait */
    err = vg_channel_try_recv(ch, at(L, 1), at(L, 0));
    if (err < 0) return fail_closed(L);
    if (err > 0) return vgL_ready(L, S, co, 1);
  } while (reserve(L, ch, 1, 1));
  vgL_newwait(L, S, co, token);
  err = vg_channel_wait(ch, co, VG_CHANNEL_RECV, 1);
  if (err < 0) {
    vg_waker_clean(co);
    return vgL_fail(L, err, NULL);
  }
  return vgL_park(L, S, co, 0, recv_done);
}

/* ch:recv([token]) --> value | nil, err */
static int channel_recv(lua_State *L) {
  vgL_state_t *S = VGL_S(L);
  vg_channel_t *ch = check(L, S);
  vg_coroutine_t *co;
  vgL_token_t token;

  lua_settop(L, 2);
  co = vgL_enter(L, S, "channel.recv");
  vgL_opttoken(L, S, 2, &token);
  if (vgL_tokenfired(L, S, &token)) return vgL_failtoken(L, S, VG_ETOKEN, 2);
  return receive(L, S, ch, co, &token);
}

/* for v in ch do: ends when it is closed and drained */
static int channel__call(lua_State *L) {
  vgL_state_t *S = VGL_S(L);
  static const vgL_token_t none = {0, NULL, 0};
  vg_channel_t *ch = check(L, S);
  lua_settop(L, 1);
  return receive(L, S, ch, vgL_enter(L, S, "channel.recv"), &none);
}

/* }================================================================= */


/* ch:try_send(value) --> boolean | nil, err */
static int channel_try_send(lua_State *L) {
  vg_channel_t *ch = check(L, VGL_S(L));
  int err;

  check_value(L, 2);
  lua_settop(L, 2);
  reserve(L, ch, 1, 1);
  err = vg_channel_try_send(ch, at(L, 1), at(L, 2));
  if (err < 0) return fail_closed(L);
  lua_pushboolean(L, err);
  return 1;
}

/* ch:try_recv() --> value | nil | nil, err */
static int channel_try_recv(lua_State *L) {
  vg_channel_t *ch = check(L, VGL_S(L));
  int err;

  lua_settop(L, 1);
  err = vg_channel_try_recv(ch, at(L, 1), at(L, 0));
  if (err < 0) return fail_closed(L);
  if (err == 0) lua_pushnil(L);
  return 1;
}

/* ch:close() */
static int channel_close(lua_State *L) {
  vg_channel_close(check(L, VGL_S(L)));
  return 0;
}

static int channel__len(lua_State *L) {
  lua_pushinteger(L, check(L, VGL_S(L))->count);
  return 1;
}

/* ch:receiving(): the channel itself, which as an awaitable means `receive` */
static int channel_receiving(lua_State *L) {
  check(L, VGL_S(L));
  lua_settop(L, 1);
  return 1;
}

/* ch:sending(value) --> an awaitable that means `send` */
static int channel_sending(lua_State *L) {
  vgL_state_t *S = VGL_S(L);
  vg_channel_t *ch = check(L, S);
  sending_t *sending;

  check_value(L, 2);
  sending = vgL_newobject(L, S, VGL_SENDING, sizeof *sending, 2);
  sending->channel = ch;
  lua_pushvalue(L, 1);
  lua_setiuservalue(L, -2, SENDING_CHANNEL);
  lua_pushvalue(L, 2);
  lua_setiuservalue(L, -2, SENDING_VALUE);
  return 1;
}

/* Methods first, and fast: every call of one comes through here. */
static int channel__index(lua_State *L) {
  vg_channel_t *ch;

  lua_pushvalue(L, 2);
  if (lua_rawget(L, lua_upvalueindex(2)) != LUA_TNIL) return 1;
  ch = check(L, VGL_S(L));
  lua_pushliteral(L, "capacity");
  if (lua_rawequal(L, 2, -1))
    lua_pushinteger(L, ch->capacity);
  else
    lua_pushnil(L);
  return 1;
}


/*
** {== Receiving and sending as cases of select and await
*/

static int closed_error(lua_State *L) {
  vgL_pusherror(L, NULL, VG_ECLOSED, "the channel is closed");
  return VGL_RAISE;
}

static int recv_is_ready(lua_State *L, vgL_state_t *S, int index,
                         vg_event_t *event) {
  VG_UNUSED(L);
  VG_UNUSED(S);
  VG_UNUSED(index);
  return vg_channel_is_ready((vg_channel_t *)event);
}

static int recv_subscribe(lua_State *L, vgL_state_t *S, int index,
                          vg_event_t *event, vg_coroutine_t *co) {
  vg_channel_t *ch = (vg_channel_t *)event;
  VG_UNUSED(S);
  reserve(L, ch, index, 1);
  return vg_channel_wait(ch, co, VG_CHANNEL_RECV, index);
}

/* value VG_CHANNEL_RECV: the wait was served, the value is on the top. */
static int recv_collect(lua_State *L, vgL_state_t *S, int index,
                        vg_event_t *event, int status, intptr_t value) {
  vg_channel_t *ch = (vg_channel_t *)event;
  VG_UNUSED(S);
  if (status < 0) return closed_error(L);
  if (value == VG_CHANNEL_RECV) {
    vg_channel_received(ch);
    return 1;
  }
  if (vg_channel_try_recv(ch, at(L, index), at(L, 0)) < 0)
    return closed_error(L);
  return 1;
}

static const vgL_type_t channel_type = {
    .name = "vigil.channel",
    .collect = recv_collect,
    .subscribe = recv_subscribe,
    .is_ready = recv_is_ready,
};

static vg_channel_t *channel_of(lua_State *L, int index) {
  return ((sending_t *)lua_touserdata(L, index))->channel;
}

int vgL_makeroom(lua_State *L, int index, int type, int n) {
  int made;

  if (type == VGL_CHANNEL)
    return reserve(L, lua_touserdata(L, index), index, (uint32_t)n);
  if (type != VGL_SENDING) return 0;
  lua_getiuservalue(L, index, SENDING_CHANNEL);
  made = reserve(L, channel_of(L, index), -1, (uint32_t)n);
  lua_pop(L, 1);
  return made;
}

static int send_is_ready(lua_State *L, vgL_state_t *S, int index,
                         vg_event_t *event) {
  vg_channel_t *ch = channel_of(L, index);
  VG_UNUSED(S);
  VG_UNUSED(event);
  return !vg_list_empty(&ch->receivers) ||
         ch->count + ch->promised < ch->capacity ||
         (ch->event.flags & VG_EVENT_CLOSED);
}

/* The value lies on the stack while we wait: pushed here, for good. */
static int send_subscribe(lua_State *L, vgL_state_t *S, int index,
                          vg_event_t *event, vg_coroutine_t *co) {
  VG_UNUSED(S);
  VG_UNUSED(event);
  luaL_checkstack(L, 2, NULL);
  lua_getiuservalue(L, index, SENDING_VALUE);
  return vg_channel_wait(channel_of(L, index), co, VG_CHANNEL_SEND,
                         lua_gettop(L));
}

static int send_collect(lua_State *L, vgL_state_t *S, int index,
                        vg_event_t *event, int status, intptr_t value) {
  vg_channel_t *ch = channel_of(L, index);
  int object, err = status;

  VG_UNUSED(S);
  VG_UNUSED(event);
  if (status == 0 && value != VG_CHANNEL_TAKEN) {
    lua_getiuservalue(L, index, SENDING_CHANNEL);
    object = lua_gettop(L);
    lua_getiuservalue(L, index, SENDING_VALUE);
    reserve(L, ch, object, 1);
    if (value == VG_CHANNEL_SEND)
      err = vg_channel_fulfil(ch, at(L, object), at(L, object + 1));
    else
      err = vg_channel_try_send(ch, at(L, object), at(L, object + 1));
    lua_settop(L, object - 1);
  }
  if (err < 0) return closed_error(L);
  lua_pushboolean(L, 1);
  return 1;
}

static int sending__tostring(lua_State *L) {
  char text[256];
  vgL_check(L, VGL_S(L), 1, VGL_SENDING);
  vg_event_info(&channel_of(L, 1)->event, text, sizeof text);
  lua_pushfstring(L, "sending to %s", text);
  return 1;
}

static const vgL_type_t sending_type = {
    .name = "vigil.sending",
    .is_box = 1, /* the channel's event is its first field's target */
    .collect = send_collect,
    .subscribe = send_subscribe,
    .is_ready = send_is_ready,
};

/* }================================================================= */


static const luaL_Reg methods[] = {
    {"send", channel_send},         {"recv", channel_recv},
    {"try_send", channel_try_send}, {"try_recv", channel_try_recv},
    {"close", channel_close},       {"receiving", channel_receiving},
    {"sending", channel_sending},   {NULL, NULL}};

static const luaL_Reg metamethods[] = {{"__len", channel__len},
                                       {"__call", channel__call},
                                       {"__close", channel_close},
                                       {NULL, NULL}};

static const luaL_Reg sending_metamethods[] = {
    {"__tostring", sending__tostring}, {NULL, NULL}};

static const luaL_Reg functions[] = {{"channel", l_channel}, {NULL, NULL}};

void vgL_openchannel(lua_State *L, vgL_state_t *S) {
  vgL_newtype(L, S, VGL_CHANNEL, &channel_type, methods, metamethods);
  lua_rawgeti(L, LUA_REGISTRYINDEX, S->metatable_refs[VGL_CHANNEL]);
  vgL_pushstate(L);
  lua_getfield(L, -2, "__index");
  lua_pushcclosure(L, channel__index, 2);
  lua_setfield(L, -2, "__index");
  lua_pop(L, 1);
  vgL_newtype(L, S, VGL_SENDING, &sending_type, NULL, sending_metamethods);
  /* a case owns nothing: no finalizer */
  lua_rawgeti(L, LUA_REGISTRYINDEX, S->metatable_refs[VGL_SENDING]);
  lua_pushnil(L);
  lua_setfield(L, -2, "__gc");
  lua_pop(L, 1);
  vgL_setfuncs(L, functions);
}
