/* Whether this CPU has what the network needs: as Linux tells it, and how long its vectors are. */

static int cpu_fits(const Cpu *cpu) {
  unsigned long n_bytes;
  for (int n = 0; n < cpu->n_needed; n++) {
    const Needed *x = &cpu->needed[n];
    if ((getauxval(x->word) & x->bits) != x->bits) return 0;
  }
  __asm__(".option push\n.option arch, +v\ncsrr %0, vlenb\n.option pop" : "=r"(n_bytes));
  return n_bytes >= (unsigned long)cpu->vector_bytes;
}

static int allow_tiles(void) { return 1; }
