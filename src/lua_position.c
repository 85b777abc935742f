/*
** lua_position.c: file and line, cheap enough to record at each spawn.
**
** lua_Debug's texts die with their function, so each distinct chunk name is
** copied once and kept.  A chunk is found again by the address of its source
** text; since another may take that address over, the name is compared too.
*/

#include <string.h>

#include "lua_internal.h"

typedef struct vgL_source {
  struct vgL_source *next; /* in its bucket */
  const char *address;     /* where the source text was when last seen */
  size_t size;
  char name[LUA_IDSIZE];
} vgL_source_t;

static unsigned bucket_of_name(const char *name) {
  unsigned hash = 5381;
  for (; *name != '\0'; name++) hash = hash * 33 + (unsigned char)*name;
  return hash % 64;
}

static unsigned bucket_of_address(const char *address) {
  return (unsigned)(((uintptr_t)address >> 4) % 64);
}

static vgL_source_t *intern(vgL_state_t *S, const char *name) {
  vgL_source_t **bucket = &S->sources[bucket_of_name(name)];
  vgL_source_t *source;

  for (source = *bucket; source != NULL; source = source->next)
    if (strcmp(source->name, name) == 0) return source;
  source = vg__alloc(S->sched, sizeof *source);
  if (source == NULL) return NULL;
  memset(source, 0, sizeof *source);
  memcpy(source->name, name, strlen(name) + 1); /* below LUA_IDSIZE */
  source->next = *bucket;
  *bucket = source;
  return source;
}

const char *vgL_position(lua_State *L, vgL_state_t *S, int level, int *line) {
  lua_Debug ar;
  vgL_source_t **recent, *source;

  *line = 0;
  do { /* C functions have no line: pcall(vigil.run, f) */
    if (!lua_getstack(L, level++, &ar)) return NULL;
    lua_getinfo(L, "Sl", &ar);
  } while (ar.currentline < 0);
  *line = ar.currentline;
  recent = &S->recent[bucket_of_address(ar.source)];
  source = *recent;
  if (source == NULL || source->address != ar.source ||
      strcmp(source->name, ar.short_src) != 0) {
    source = intern(S, ar.short_src);
    if (source == NULL) return NULL;
    source->address = ar.source;
    *recent = source;
  }
  return source->name;
}

void vgL_freepositions(vgL_state_t *S) {
  int i;
  for (i = 0; i < 64; i++) {
    while (S->sources[i] != NULL) {
      vgL_source_t *source = S->sources[i];
      S->sources[i] = source->next;
      vg__free(S->sched, source, sizeof *source);
    }
    S->recent[i] = NULL;
  }
}
