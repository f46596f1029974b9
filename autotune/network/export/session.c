/* Sessions: a state that stays in place. What is above is generated: for each port of a step, and of
 * what begins a sequence, where its elements are; `steps`, the largest first. */

struct M(session) {
  M(model) *model;
  char *memory;
  int64_t filled;
  int turn, begun; /* which of two arrays is the state, where a call replaces it */
};

int M(open)(M(model) *m, M(session) **out) {
  M(session) *s;
  if (!out) return S(NO_ARGUMENT);
  *out = NULL;
  if (!m) return S(NO_ARGUMENT);
  s = calloc(1, sizeof *s);
  if (!s) return S(NO_MEMORY);
  s->model = m;
  s->memory = pages(STATE_BYTES); /* zeros, which the system gives when they are written */
  if (!s->memory) {
    free(s);
    return S(NO_MEMORY);
  }
  *out = s;
  return S(OK);
}

void M(close)(M(session) *s) {
  if (!s) return;
  munmap(s->memory, STATE_BYTES);
  free(s);
}

int64_t M(length)(const M(session) *s) { return s->filled; }

void M(reset)(M(session) *s) {
  s->filled = 0;
  s->turn = 0;
  for (int n = 0; n < N_STEP_INPUTS; n++)
    if (step_inputs[n].kind == OLD)
      memset(s->memory + step_inputs[n].at, 0, (size_t)step_inputs[n].size);
}

/* The address of what a port reads or writes; `given`: that of the caller's arrays. */
static char *place(M(session) *s, const Part *p, char *given, int64_t done) {
  switch (p->kind) {
    case GIVEN: return given + done * p->size;
    case LENGTH: return (char *)&s->filled;
    case ROWS: return s->memory + p->at + s->filled * p->size;
    case OLD: return s->memory + p->at + (s->turn ? p->size : 0);
    case NEW: return s->memory + p->at + (s->turn ? 0 : p->size);
    default: return s->memory + p->at;
  }
}

/* A step of so many places, which all its lengths follow. */
static void advance(M(session) *s, Caller *c, int variant, int64_t n_places, void *const *in,
                    void *const *out, int64_t done) {
  const void *inputs[N_INPUTS + 1];
  void *outputs[N_OUTPUTS + 1];
  int64_t numbers[N_LENGTHS + 1];
  const Variant *v = &variants[variant];
  for (int n = 0; n < v->n_lengths; n++) numbers[n] = n_places;
  for (int n = 0; n < N_STEP_INPUTS; n++) inputs[n] = place(s, &step_inputs[n], in[n], done);
  for (int n = 0; n < N_STEP_OUTPUTS; n++) outputs[n] = place(s, &step_outputs[n], out[n], done);
  compute(v, c, s->model->n_threads, numbers, inputs, outputs);
  s->filled += CAPACITY ? n_places : 0;
  s->turn = !s->turn;
}

static int64_t places_of(const Step *step, int64_t left) {
  return left < step->most ? left : step->most;
}

int M(step)(M(session) *s, int64_t n, const M(inputs) *in, const M(outputs) *out) {
  void *given[N_INPUTS + 1], *made[N_OUTPUTS + 1];
  int64_t left = n, n_steps = 0;
  Caller *c;
#if BY_SHAPE
  const int64_t *shapes[N_INPUTS + 1];
  int64_t numbers[N_LENGTHS + 1];
  const Variant *v;
#endif
  if (!s || !in || !out || n < 1) return S(NO_ARGUMENT);
  if (HAS_BEGIN && !s->begun) return S(NOT_BEGUN);
  if (CAPACITY && n > CAPACITY - s->filled) return S(FULL);
  for (int k = 0; k < N_STEPS; k++)
    for (; left >= steps[k].least; n_steps++) left -= places_of(&steps[k], left);
  if (left || (n_steps > 1 && !JOINS)) return S(OTHER_SHAPE);
#if BY_SHAPE
  shapes_of(in, shapes);
  if (n > 1 || variant_of(shapes, numbers, &v) != S(OK)) return S(OTHER_SHAPE);
#endif
  arrays_of(in, out, given, made);
  for (int k = 0; k < N_STEP_INPUTS; k++)
    if (step_inputs[k].kind == GIVEN && !given[k]) return S(NO_ARGUMENT);
  for (int k = 0; k < N_STEP_OUTPUTS; k++)
    if (step_outputs[k].kind == GIVEN && !made[k]) return S(NO_ARGUMENT);
  after_fork(s->model, generation(TEAM_SYMBOL));
  c = take(s->model);
#if BY_SHAPE
  advance(s, c, (int)(v - variants), 1, given, made, 0);
#else
  left = n;
  for (int k = 0; k < N_STEPS; k++)
    while (left >= steps[k].least) {
      int64_t some = places_of(&steps[k], left);
      advance(s, c, steps[k].variant, some, given, made, n - left);
      left -= some;
    }
#endif
  release(s->model, c);
  return S(OK);
}

#if HAS_BEGIN
int M(begin)(M(session) *s, const M(begin_inputs) *in) {
  void *inputs[N_INPUTS + 1], *outputs[N_OUTPUTS + 1];
  int64_t numbers[N_LENGTHS + 1] = {0};
  const Variant *v = &variants[N_VARIANTS - 1];
  Caller *c;
  if (!s || !in) return S(NO_ARGUMENT);
  begin_arrays_of(in, inputs);
  for (int n = 0; n < v->n_inputs; n++)
    if (!inputs[n]) return S(NO_ARGUMENT);
  for (int n = 0; n < v->n_outputs; n++) outputs[n] = s->memory + begin_outputs[n].at;
  after_fork(s->model, generation(TEAM_SYMBOL));
  c = take(s->model);
  compute(v, c, s->model->n_threads, numbers, (const void *const *)inputs, outputs);
  release(s->model, c);
  M(reset)(s);
  s->begun = 1;
  return S(OK);
}
#endif
