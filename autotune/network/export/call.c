/* An inference of a network without a state: the variant for the shapes of its inputs. */

int M(run)(M(model) *m, const M(inputs) *in, const M(outputs) *out) {
  void *inputs[N_INPUTS + 1];
  const int64_t *shapes[N_INPUTS + 1];
  void *outputs[N_OUTPUTS + 1];
  int64_t numbers[N_LENGTHS + 1];
  const Variant *v;
  Caller *c;
  int status;
  if (!m || (!in && N_INPUTS) || !out) return S(NO_ARGUMENT);
  arrays_of(in, out, inputs, outputs);
  shapes_of(in, shapes);
  status = variant_of(shapes, numbers, &v);
  if (status != S(OK)) return status;
  for (int n = 0; n < v->n_inputs; n++)
    if (!inputs[n] && count(v, n, numbers)) return S(NO_ARGUMENT);
  for (int n = 0; n < v->n_outputs; n++)
    if (!outputs[n] && count(v, v->n_inputs + n, numbers)) return S(NO_ARGUMENT);
  after_fork(m, generation(TEAM_SYMBOL));
  c = take(m);
  compute(v, c, m->n_threads, numbers, (const void *const *)inputs, outputs);
  release(m, c);
  return S(OK);
}
