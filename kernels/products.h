/* products -- the matrix products that a run will ask for, by shape: a device that only counts writes them down, and
 * another does each of them once, before the first step, so that it knows them all. */
#ifndef PRODUCTS_H
#define PRODUCTS_H
#include "device.h"

typedef enum { PRODUCT_MATMUL, PRODUCT_LINEAR } ProductOp;

/* One call: its matrices without their memory, in the order of the op's arguments. rows 0: absent. */
typedef struct {
    ProductOp op;
    Mat mat[4];
    int ta, tb, acc;
} Product;

typedef struct { Product *list; int64_t n, room; } Products;

/* From here on d's products are added to p, each shape once. d is a device that does nothing, without an `impl`. */
void products_watch(Device *d, Products *p);
void products_close(Products *p);

/* Does each product once, with all operands in `memory` of d, whose numbers are lost. What does not fit into `bytes`
 * is left out: a run has room for the operands of all its products. */
void products_replay(const Products *p, Device *d, void *memory, size_t bytes);
#endif
