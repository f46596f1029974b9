/* Whether this CPU and its system have what the network needs: as Linux tells it. */

#include <sys/auxv.h>
#include <sys/prctl.h>

typedef struct {
  unsigned long word, bits; /* a word of the auxiliary vector, and bits of it */
} Needed;

static int cpu_fits(void) {
  static const Needed needed[] = {NEEDED};
  const int get_vector_length = 51, length = 0xffff;
  for (size_t n = 0; n < sizeof needed / sizeof *needed; n++)
    if ((getauxval(needed[n].word) & needed[n].bits) != needed[n].bits) return 0;
  /* code for vectors of a length is wrong for any other one */
  return !VECTOR_BYTES || (prctl(get_vector_length) & length) == VECTOR_BYTES;
}

static int allow_tiles(void) { return 1; }
