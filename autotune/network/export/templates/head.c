#define _GNU_SOURCE
#include "@name@.h"

#include <dlfcn.h>
#include <fcntl.h>
#include <limits.h>
#include <linux/futex.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/auxv.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#ifndef MADV_WIPEONFORK
#define MADV_WIPEONFORK 18
#endif

#define M(x) @name@_##x
#define S(x) @guard@_##x
#define TEAM_SYMBOL @team@
#define FEATURES_TEXT @features@

enum {
@numbers@
};

typedef struct {
  @needed_fields@
} Needed;

typedef struct {
  const Needed *needed;
  int n_needed, vector_bytes, needs_tiles;
} Cpu;

typedef struct {
  int kind;
  int64_t staging, room; /* of a caller's: its elements as they are stored; for the longest */
} Port;

typedef struct {
  const int64_t *plan;
  const Port *ports; /* inputs, then outputs */
  int n_inputs, n_outputs, n_slots, n_words, n_lengths, n_kernels;
  const char *kernels;
  void (*run)(void *, int64_t);
} Variant;
