/* library_types -- the element types that the libraries' calls name, with the numbers that the libraries give
 * them. */
#ifndef EMULATION_LIBRARY_TYPES_H
#define EMULATION_LIBRARY_TYPES_H

typedef enum {
    CUDA_R_32F = 0,
    CUDA_R_64F = 1,
    CUDA_R_16F = 2,
    CUDA_R_32I = 10,
    CUDA_R_16BF = 14,
    CUDA_R_8F_E4M3 = 28,
    CUDA_R_8F_E5M2 = 29
} cudaDataType_t;
typedef cudaDataType_t cudaDataType;
#endif
