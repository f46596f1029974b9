/* Whether this CPU and its system have what the network needs: as `autotune.target.cpuid` asks. */

#include <cpuid.h>

static int cpu_fits(const Cpu *cpu) {
  uint32_t r[4], low = 0, high = 0;
  uint64_t saved;
  __cpuid(1, r[0], r[1], r[2], r[3]);
  if (r[2] >> 27 & 1) __asm__("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
  saved = (uint64_t)high << 32 | low;
  for (int n = 0; n < cpu->n_needed; n++) {
    const Needed *x = &cpu->needed[n];
    uint32_t most = __get_cpuid_max(x->leaf & 0x80000000u, NULL);
    if (x->leaf > most) return 0;
    __cpuid_count(x->leaf, 0, r[0], r[1], r[2], r[3]);
    if (x->subleaf && x->subleaf > r[0] && (x->leaf == 7 || x->leaf == 30)) return 0;
    __cpuid_count(x->leaf, x->subleaf, r[0], r[1], r[2], r[3]);
    if ((r[x->at] & x->bits) != x->bits || (saved & x->saved) != x->saved) return 0;
  }
  return 1;
}

static int allow_tiles(void) {
  const long request_permission = 0x1023, tile_data = 18;
  return !syscall(SYS_arch_prctl, request_permission, tile_data);
}
