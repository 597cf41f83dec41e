/* act -- the formulas of the activations of the feed-forward layer; act.cu and fp8.cu use them */
#ifndef ACT_CUH
#define ACT_CUH
#include "common.cuh"

#define GELU_A 1.5957691216057308f     /* 2 sqrt(2/pi) */
#define GELU_B 0.044715f
#define INV_SQRT_2PI 0.39894228040143268f
#define LOG2_E 1.4426950408889634f

__device__ __forceinline__ float sigmoid(float x) { return __fdividef(1.0f, 1 + exp2f(-LOG2_E * x)); }

/* Phi(x) = (1 + erf(x / sqrt 2)) / 2. */
__device__ __forceinline__ float normal_cdf(float x, float)
{
    return 0.5f + 0.5f * erff(x * 0.70710678118654752f);
}
/* Phi for 16-bit storage: 2^-Q(|x|) for x < 0, else 1 - 2^-Q(x). Q is a minimax fit of -log2 Phi(-a) on
 * 0 <= a <= 7 and grows beyond; the error of Phi is below 7e-7. */
template <class T> __device__ __forceinline__ float normal_cdf(float x, T)
{
    float a = fabsf(x), q = 1.5479626e-06f;
    q = q * a - 5.57053245e-05f;
    q = q * a + 8.84585374e-04f;
    q = q * a - 8.33884347e-03f;
    q = q * a + 5.36612757e-02f;
    q = q * a + 4.58699048e-01f;
    q = q * a + 1.15118575f;
    q = q * a + 0.999998033f;
    float tail = exp2f(-q);
    return x < 0 ? tail : 1 - tail;
}

/* Returns act(x) and writes act'(x) to *d; the two share exponentials. The compiler drops an unused
 * *d. */
template <int KIND, class T> __device__ __forceinline__ float apply(float x, float *d)
{
    float s;
    switch (KIND) {
    case ACT_GELU:
    case ACT_GEGLU:
        s = normal_cdf(x, T());
        *d = s + x * INV_SQRT_2PI * exp2f(-0.5f * LOG2_E * x * x);
        return x * s;
    case ACT_GELU_TANH:
        s = sigmoid(GELU_A * x * (1 + GELU_B * x * x));
        *d = s + x * s * (1 - s) * GELU_A * (1 + 3 * GELU_B * x * x);
        return x * s;
    case ACT_SWIGLU:
        s = sigmoid(x);
        *d = s * (1 + x * (1 - s));
        return x * s;
    case ACT_RELU:             /* a NaN stays one */
        *d = x <= 0 ? 0 : 1;
        return x <= 0 ? 0 : x;
    default:                   /* ACT_SQUARED_RELU */
        s = x <= 0 ? 0 : x;
        *d = 2 * s;
        return s * s;
    }
}

/* One element forward and backward, by the gate x and, where KIND is gated, its factor up.
 *   e    in/out  gradient of the output; becomes that of x
 *   dup  out     gradient of up */
template <int KIND, class T> __device__ __forceinline__ float act_forward(float x, float up)
{
    float unused;
    return apply<KIND, T>(x, &unused) * (ACT_GATED(KIND) ? up : 1);
}
template <int KIND, class T>
__device__ __forceinline__ void act_backward(float *e, float *dup, float x, float up)
{
    float d, y = apply<KIND, T>(x, &d);
    if (ACT_GATED(KIND)) {
        *dup = *e * y;
        *e *= up;
    }
    *e *= d;
}
#endif
