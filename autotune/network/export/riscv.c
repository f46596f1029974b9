/* Whether this CPU has what the network needs: as Linux tells it, and how long its vectors are. */

#include <sys/auxv.h>

typedef struct {
  unsigned long word, bits; /* a word of the auxiliary vector, and bits of it */
} Needed;

static int cpu_fits(void) {
  static const Needed needed[] = {NEEDED};
  unsigned long n_bytes;
  for (size_t n = 0; n < sizeof needed / sizeof *needed; n++)
    if ((getauxval(needed[n].word) & needed[n].bits) != needed[n].bits) return 0;
  __asm__(".option push\n.option arch, +v\ncsrr %0, vlenb\n.option pop" : "=r"(n_bytes));
  return n_bytes >= VECTOR_BYTES;
}

static int allow_tiles(void) { return 1; }
