/* An inference of a network without a state: the variant for the shapes of its inputs. */

int M(run)(M(model) *m, const M(inputs) *in, const M(outputs) *out) {
  void *inputs[N_INPUTS + 1];
  const int64_t *shapes[N_INPUTS + 1];
  void *outputs[N_OUTPUTS + 1];
  const Variant *v;
  Caller *c;
  if (!m || (!in && N_INPUTS) || !out) return S(NO_ARGUMENT);
  arrays_of(in, out, inputs, outputs);
  shapes_of(in, shapes);
  v = variant_of(shapes);
  if (!v) return S(OTHER_SHAPE);
  for (int n = 0; n < N_INPUTS; n++)
    if (!inputs[n] && v->inputs[n].count) return S(NO_ARGUMENT);
  for (int n = 0; n < N_OUTPUTS; n++)
    if (!outputs[n] && v->outputs[n].count) return S(NO_ARGUMENT);
  after_fork(m, generation(TEAM_SYMBOL));
  c = take(m);
  compute(v, c, m->n_threads, (const void *const *)inputs, outputs, 0);
  release(m, c);
  return S(OK);
}
