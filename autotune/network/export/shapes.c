/* The variant for the shapes of inputs, and the numbers of its lengths; else a status. */

static int variant_of(const int64_t *const *shapes, int64_t *numbers, const Variant **found) {
  int64_t wrong = 0;
  for (int k = 0; k < N_VARIANTS; k++) {
    const Variant *v = &variants[order[k]];
    wrong = ports_numbers_of((int64_t)(intptr_t)v->plan, (int64_t)(intptr_t)shapes,
                             (int64_t)(intptr_t)numbers);
    *found = v;
    if (!wrong) return S(OK);
  }
  return wrong % REASONS == OTHER ? S(OTHER_SHAPE) : AFTER_SHAPES + (int)(wrong % REASONS);
}
