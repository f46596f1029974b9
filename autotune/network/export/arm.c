/* Whether this CPU and its system have what the network needs: as Linux tells it. */

#include <sys/prctl.h>

static int cpu_fits(const Cpu *cpu) {
  const int get_vector_length = 51, length = 0xffff;
  for (int n = 0; n < cpu->n_needed; n++) {
    const Needed *x = &cpu->needed[n];
    if ((getauxval(x->word) & x->bits) != x->bits) return 0;
  }
  /* code for vectors of a length is wrong for any other one */
  return !cpu->vector_bytes || (prctl(get_vector_length) & length) == cpu->vector_bytes;
}

static int allow_tiles(void) { return 1; }
