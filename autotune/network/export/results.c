/* The shapes of results, of which the arrays of inputs are not looked at. */

int M(shapes)(const M(inputs) *in, M(result_shapes) *out) {
  const int64_t *shapes[N_INPUTS + 1];
  int64_t *results[N_OUTPUTS + 1];
  int64_t numbers[N_LENGTHS + 1];
  const Variant *v;
  int status;
  if (!in || !out) return S(NO_ARGUMENT);
  shapes_of(in, shapes);
  status = variant_of(shapes, numbers, &v);
  if (status != S(OK)) return status;
  results_of(out, results);
  for (int n = 0; n < v->n_outputs; n++)
    if (results[n])
      ports_extents_of((int64_t)(intptr_t)v->plan, v->n_inputs + n, (int64_t)(intptr_t)numbers,
                       (int64_t)(intptr_t)results[n]);
  return S(OK);
}
