/* isas -- the CPU's instruction sets, best first: X(id, name). With "auto" cpu_open takes the first one
 * that the CPU has. amx is the ops of avx512, with products of BF16 in AMX tiles; sve256 is Arm's SVE on
 * cores whose vectors have 256 bits; generic is what every CPU of its kind has: SSE2, or NEON. */
#ifndef ISAS_H
#define ISAS_H
#define CPU_ISAS(X)                                                                                          \
    X(AMX, "amx") X(AVX512, "avx512") X(AVX2, "avx2") X(SVE256, "sve256") X(GENERIC, "generic")
#endif
