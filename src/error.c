/*
** error.c: error codes as names and sentences.
*/

#include "internal.h"

static const struct {
  int code;
  const char *name, *message;
} own_errors[] = {
    {VG_EFAILED, "EFAILED", "the event failed"},
    {VG_EDEADLOCK, "EDEADLOCK", "deadlock: nothing can end this wait"},
    {VG_ECLOSED, "ECLOSED", "closed"},
    {VG_ENESTED, "ENESTED", "fired from inside its own notification"},
    {VG_ESTATE, "ESTATE", "not possible in this state"},
    {VG_EMSGSIZE, "EMSGSIZE", "longer than the limit"},
    {VG_ETOKEN, "ECANCELED", "ended by its token"},
};

const char *vg_version(void) { return VIGIL_VERSION; }

const char *vg_error_name(int err) {
  size_t i;
  for (i = 0; i < sizeof own_errors / sizeof own_errors[0]; i++)
    if (own_errors[i].code == err) return own_errors[i].name;
  return uv_err_name(err);
}

const char *vg_error_message(int err) {
  size_t i;
  for (i = 0; i < sizeof own_errors / sizeof own_errors[0]; i++)
    if (own_errors[i].code == err) return own_errors[i].message;
  return uv_strerror(err);
}
