/* isas -- the CPU's instruction sets, best first: X(id, name). `auto` of cpu_open takes the first that the
 * CPU has; amx runs the avx512 ops and multiplies BF16 in tiles. */
#ifndef ISAS_H
#define ISAS_H
#define CPU_ISAS(X) X(AMX, "amx") X(AVX512, "avx512") X(AVX2, "avx2") X(GENERIC, "generic")
#endif
