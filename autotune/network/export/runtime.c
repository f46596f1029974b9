/* The run time of an exported network. What is above this line is generated: the tables of this
 * network, M(x), which is name_x, and S(x), which is NAME_x.
 *
 * A model has a place for each of its callers: an arena, and for each variant a table of addresses
 * and a job of the team. A call takes a place, writes the addresses of the caller's arrays into the
 * table, and runs. Nothing is allocated. The team of threads belongs to the process; all libraries
 * exported by this version share it.
 */

#define WORD(base, at) (*(int64_t *)((char *)(base) + (at)))
#define ALIGNED(n, to) (((n) + (to) - 1) / (to) * (to))

enum { N_SEATS = (BLOCK_BYTES - TEAM_BYTES) / SEAT_BYTES };

typedef struct {
  void *table, *job;
} Place;

typedef struct {
  char *arena, *staging;
  int taken;
  Place places[N_VARIANTS];
} Caller;

struct M(model) {
  const char *constants;
  void *mapped; /* constants in a file of their own */
  char *memory;
  size_t n_bytes;
  int64_t n_threads;
  int n_callers;
  int news, n_waiting; /* of callers that end, and of those that wait for one */
  int64_t generation;
  Caller *callers;
};

/* Memory --------------------------------------------------------------------------------------- */

static void *pages(size_t n_bytes) {
  void *found = mmap(NULL, n_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  return found == MAP_FAILED ? NULL : found;
}

static void sleep_while(int *at, int value) {
  syscall(SYS_futex, at, FUTEX_WAIT_PRIVATE, value, NULL, NULL, 0);
}

static void wake(int *at, int n) { syscall(SYS_futex, at, FUTEX_WAKE_PRIVATE, n, NULL, NULL, 0); }

/* The team ------------------------------------------------------------------------------------- */

typedef struct Crew Crew;

struct Crew {
  char *block; /* the team, then its seats: zeros again in the child of a fork */
  Crew *next;  /* more seats */
  int pid;     /* where the system does not wipe the block */
  int64_t generation; /* grows in the child of a fork */
  unsigned char taken[N_SEATS];
  int64_t settings[SETTINGS_BYTES / 8];
};

extern Crew *TEAM_SYMBOL; /* one in a process */

static Crew *another(Crew **at) {
  Crew *found = __atomic_load_n(at, __ATOMIC_ACQUIRE), *made, *expected = NULL;
  if (found) return found;
  made = pages(sizeof(Crew));
  if (!made) return NULL;
  made->block = pages(BLOCK_BYTES);
  if (!made->block) {
    munmap(made, sizeof(Crew));
    return NULL;
  }
  made->pid = madvise(made->block, BLOCK_BYTES, MADV_WIPEONFORK) ? (int)getpid() : 0;
  made->generation = 1;
  WORD(made->block, IS_HERE) = 2;
  made->settings[SET_CAPACITY / 8] = usable_cpus();
  made->settings[SET_PATIENCE / 8] = PATIENCE_NS;
  made->settings[SET_PART / 8] = PART_NS;
  made->settings[SET_ASSIST / 8] = (int64_t)(intptr_t)team_assist;
  if (__atomic_compare_exchange_n(at, &expected, made, 0, __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE))
    return made;
  munmap(made->block, BLOCK_BYTES);
  munmap(made, sizeof(Crew));
  return expected;
}

/* The number of forks since the first process, counted from 1: a child has no threads of the team.
 * Whoever calls first in a child counts; others wait until that is done. */
static int64_t generation(Crew *crew) {
  int64_t *here = &WORD(crew->block, IS_HERE), none = 0;
  if (crew->pid && crew->pid != (int)getpid()) {
    memset(crew->block, 0, BLOCK_BYTES);
    crew->pid = (int)getpid();
  }
  if (!__atomic_load_n(here, __ATOMIC_ACQUIRE) &&
      __atomic_compare_exchange_n(here, &none, 1, 0, __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE)) {
    __atomic_add_fetch(&crew->generation, 1, __ATOMIC_ACQ_REL);
    __atomic_store_n(here, 2, __ATOMIC_RELEASE);
  }
  while (__atomic_load_n(here, __ATOMIC_ACQUIRE) != 2) sched_yield();
  return __atomic_load_n(&crew->generation, __ATOMIC_ACQUIRE);
}

static void *seat(void) {
  Crew **at = &TEAM_SYMBOL, *crew;
  while ((crew = another(at))) {
    for (int n = 0; n < N_SEATS; n++)
      if (!__atomic_exchange_n(&crew->taken[n], 1, __ATOMIC_ACQ_REL))
        return crew->block + TEAM_BYTES + (size_t)n * SEAT_BYTES;
    at = &crew->next;
  }
  return NULL;
}

static void give_back(const char *seat) {
  for (Crew *crew = TEAM_SYMBOL; crew; crew = crew->next)
    if (seat >= crew->block && seat < crew->block + BLOCK_BYTES)
      __atomic_store_n(&crew->taken[(seat - crew->block - TEAM_BYTES) / SEAT_BYTES], 0,
                       __ATOMIC_RELEASE);
}

/* Models --------------------------------------------------------------------------------------- */

/* Take the first code that this CPU runs, in all models of the process; with `any`, the least. */
static int for_this_cpu(int any) {
  for (int n = 0; n < N_CPUS; n++)
    if ((any && n == N_CPUS - 1) || cpu_fits(&cpus[n])) {
      if (cpus[n].needs_tiles && !allow_tiles()) continue;
      __atomic_store_n(&variants, all_variants + n * N_VARIANTS, __ATOMIC_RELAXED);
      return 1;
    }
  return 0;
}

static size_t place_bytes(const Variant *v, int64_t n_threads) {
  size_t table = ALIGNED(8 * (size_t)v->n_words, 64);
  size_t job = JOB_BYTES + LINE * n_threads + LINE +
               (size_t)v->n_kernels * (RUN_BYTES + LINE * (n_threads + 1));
  return table + ALIGNED(job, 64);
}

static size_t caller_bytes(int64_t n_threads) {
  size_t n = ARENA_BYTES + STAGING_BYTES;
  for (int k = 0; k < N_VARIANTS; k++) n += place_bytes(&variants[k], n_threads);
  return ALIGNED(n, n >= LARGE_FROM ? LARGE_PAGE : 64);
}

static int settle(M(model) *m, Caller *c, char *at) {
  c->arena = at;
  c->staging = at + ARENA_BYTES;
  at = c->staging + STAGING_BYTES;
  for (int k = 0; k < N_VARIANTS; k++) {
    const Variant *v = &variants[k];
    Place *place = &c->places[k];
    void *sits = seat();
    if (!sits) return S(NO_MEMORY);
    place->table = at;
    place->job = at + ALIGNED(8 * (size_t)v->n_words, 64);
    at += place_bytes(v, m->n_threads);
    WORD(place->table, 8 * ARENA) = (int64_t)(intptr_t)c->arena;
    WORD(place->table, 8 * CONSTANTS) = (int64_t)(intptr_t)m->constants;
    WORD(place->table, 8 * v->n_slots) = (int64_t)(intptr_t)place->job;
    for (int n = 0; n < v->n_outputs; n++)
      WORD(place->table, v->plan[PLAN_ROOMS / 8] + 8 * n) =
          (int64_t)(intptr_t)(c->staging + v->ports[v->n_inputs + n].room);
    WORD(place->job, JOB_TEAM) = (int64_t)(intptr_t)TEAM_SYMBOL->block;
    WORD(place->job, JOB_SEAT) = (int64_t)(intptr_t)sits;
    WORD(place->job, JOB_TABLE) = (int64_t)(intptr_t)place->table;
    WORD(place->job, JOB_SHARES) = m->n_threads;
    WORD(place->job, JOB_N_KERNELS) = v->n_kernels;
    WORD(place->job, JOB_WANTED) = m->n_threads - 1;
    WORD(place->job, JOB_SETTINGS) = (int64_t)(intptr_t)TEAM_SYMBOL->settings;
    team_prepare((int64_t)(intptr_t)place->job, (int64_t)(intptr_t)v->kernels);
    team_make((int64_t)(intptr_t)TEAM_SYMBOL->block, (int64_t)(intptr_t)place->job,
              m->n_threads - 1);
  }
  return S(OK);
}

int M(create)(const M(options) *given, M(model) **out) {
  M(options) options = {0, 0, 0, NULL};
  M(model) *m;
  size_t head, each;
  int status;
  if (!out) return S(NO_ARGUMENT);
  *out = NULL;
  if (given) options = *given;
  if (!for_this_cpu(options.any_cpu)) return S(OTHER_CPU);
  if (options.threads < 0 || options.callers < 0) return S(NO_ARGUMENT);
  if (!another(&TEAM_SYMBOL)) return S(NO_MEMORY);
  m = calloc(1, sizeof *m);
  if (!m) return S(NO_MEMORY);
  m->n_threads = options.threads ? options.threads : usable_threads(N_THREADS);
  m->n_callers = options.callers ? options.callers : 1;
  m->generation = generation(TEAM_SYMBOL);
  status = find_constants(options.weights, &m->constants, &m->mapped);
  if (status != S(OK)) {
    free(m);
    return status;
  }
  head = ALIGNED(sizeof(Caller) * (size_t)m->n_callers, 64);
  each = caller_bytes(m->n_threads);
  m->n_bytes = head + each * (size_t)m->n_callers + LARGE_PAGE;
  m->memory = pages(m->n_bytes);
  if (m->memory) {
    char *at;
    if (each >= LARGE_FROM) madvise(m->memory, m->n_bytes, MADV_HUGEPAGE);
    at = m->memory + (-(intptr_t)m->memory & (LARGE_PAGE - 1));
    m->callers = (Caller *)(void *)(at + each * (size_t)m->n_callers);
    for (int n = 0; n < m->n_callers && status == S(OK); n++)
      status = settle(m, &m->callers[n], at + each * (size_t)n);
  }
  if (!m->memory || status != S(OK)) {
    M(destroy)(m);
    return S(NO_MEMORY);
  }
  *out = m;
  return S(OK);
}

void M(destroy)(M(model) *m) {
  if (!m) return;
  for (int n = 0; m->callers && n < m->n_callers; n++)
    for (int k = 0; k < N_VARIANTS; k++) {
      void *job = m->callers[n].places[k].job;
      if (!job) continue;
      team_leave((int64_t)(intptr_t)job);
      give_back((char *)(intptr_t)WORD(job, JOB_SEAT));
    }
  if (m->memory) munmap(m->memory, m->n_bytes);
  if (m->mapped) munmap(m->mapped, WEIGHTS_HEADER + CONSTANTS_BYTES);
  free(m);
}

/* In the child of a fork nobody else is in a call, and nobody waits: the first that comes frees all
 * places, and others wait for that. `-now`: somebody is at it. */
static void after_fork(M(model) *m, int64_t now) {
  int64_t seen = __atomic_load_n(&m->generation, __ATOMIC_ACQUIRE);
  while (seen != now) {
    if (seen == -now) {
      sched_yield();
      seen = __atomic_load_n(&m->generation, __ATOMIC_ACQUIRE);
    } else if (__atomic_compare_exchange_n(&m->generation, &seen, -now, 0, __ATOMIC_ACQ_REL,
                                           __ATOMIC_ACQUIRE)) {
      for (int n = 0; n < m->n_callers; n++) {
        for (int k = 0; k < N_VARIANTS; k++) WORD(m->callers[n].places[k].job, JOB_WAITERS) = 0;
        m->callers[n].taken = 0;
      }
      m->n_waiting = 0;
      __atomic_store_n(&m->generation, now, __ATOMIC_RELEASE);
      return;
    }
  }
}

static Caller *take(M(model) *m) {
  for (;;) {
    int news = __atomic_load_n(&m->news, __ATOMIC_SEQ_CST);
    for (int n = 0; n < m->n_callers; n++)
      if (!__atomic_load_n(&m->callers[n].taken, __ATOMIC_RELAXED) &&
          !__atomic_exchange_n(&m->callers[n].taken, 1, __ATOMIC_SEQ_CST))
        return &m->callers[n];
    __atomic_add_fetch(&m->n_waiting, 1, __ATOMIC_SEQ_CST);
    sleep_while(&m->news, news);
    __atomic_sub_fetch(&m->n_waiting, 1, __ATOMIC_SEQ_CST);
  }
}

static void release(M(model) *m, Caller *c) {
  __atomic_store_n(&c->taken, 0, __ATOMIC_SEQ_CST);
  __atomic_add_fetch(&m->news, 1, __ATOMIC_SEQ_CST);
  if (__atomic_load_n(&m->n_waiting, __ATOMIC_SEQ_CST)) wake(&m->news, 1);
}

/* One inference -------------------------------------------------------------------------------- */

static void convert(int64_t (*by)(int64_t, int64_t, int64_t, int64_t), int kind, int64_t n,
                    const void *from, void *to) {
  by(kind, n, (int64_t)(intptr_t)from, (int64_t)(intptr_t)to);
}

static int64_t count(const Variant *v, int port, const int64_t *numbers) {
  return ports_extents_of((int64_t)(intptr_t)v->plan, port, (int64_t)(intptr_t)numbers, 0);
}

static void compute(const Variant *v, Caller *c, int64_t n_threads, const int64_t *numbers,
                    const void *const *inputs, void *const *outputs) {
  char *table = c->places[v - variants].table;
  char *arrays = table + v->plan[PLAN_ARRAYS / 8];
  int64_t plan = (int64_t)(intptr_t)v->plan, at = (int64_t)(intptr_t)table;
  memcpy(table + v->plan[PLAN_NUMBERS / 8], numbers, 8 * (size_t)v->n_lengths);
  for (int n = 0; n < v->n_inputs + v->n_outputs; n++) {
    const Port *p = &v->ports[n];
    int is_input = n < v->n_inputs;
    const void *given = is_input ? inputs[n] : outputs[n - v->n_inputs];
    char *staging = c->staging + p->staging;
    if (p->kind != PLAIN && is_input)
      convert(ports_widen, p->kind, count(v, n, numbers), given, staging);
    WORD(arrays, 8 * n) = (int64_t)(intptr_t)(p->kind == PLAIN ? given : (const void *)staging);
  }
  ports_enter(plan, at, 0);
  v->run(table, n_threads);
  ports_leave(plan, at, 0);
  for (int n = 0; n < v->n_outputs; n++) {
    const Port *p = &v->ports[v->n_inputs + n];
    const char *staging = c->staging + p->staging;
    if (p->kind != PLAIN)
      convert(ports_narrow, p->kind, count(v, v->n_inputs + n, numbers), staging, outputs[n]);
  }
}

const char *M(strerror)(int status) {
  switch (status) {
    case S(OK): return "no error";
    case S(OTHER_CPU): return "this CPU lacks instructions that the network was compiled for: " FEATURES_TEXT;
    case S(NO_MEMORY): return "the system has no memory for the network";
    case S(NO_ARGUMENT): return "an argument is missing, or cannot be";
    case S(OTHER_SHAPE): return "the network was not compiled for inputs of these shapes";
    case S(NO_WEIGHTS): return "the file of weights cannot be read, or is of another network";
#if HAS_STATE
    case S(FULL): return "the state has no room for so many places";
    case S(NOT_BEGUN): return "no sequence has begun";
#endif
#ifdef LENGTHS_TEXT
    case S(TOO_LONG): return "a dimension is longer than the network was compiled for: " LENGTHS_TEXT;
    case S(TOO_SHORT): return "a dimension is shorter than the network can have: " LENGTHS_TEXT;
    case S(BETWEEN): return "a dimension is between two steps: " LENGTHS_TEXT;
    case S(DISAGREE): return "inputs disagree about a length: " LENGTHS_TEXT;
#endif
    default: return "no status of this library";
  }
}

const char *M(signature)(void) { return signature; }
