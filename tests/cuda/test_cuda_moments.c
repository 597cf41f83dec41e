/* test_cuda_moments -- optimizers of a GPU with moments of 16 and 8 bits, beside their own with F32 moments
 * rounded by the rule of moments.h (moment_rule.h): the same bytes. */
#include "half.h"
#include "moment_rule.h"

int main(void)
{
    Device gpu;
    cuda_open(&gpu, F32, 0);
    moments_by_rule(&gpu);
    cuda_close(&gpu);
    return test_end();
}
