/* algorithms -- the list of chosen algorithms: find, add, close */
#include "algorithms.h"
#include "base.h"
#include <stdlib.h>
#include <string.h>

const Algorithm *algorithms_find(const Algorithms *a, const char *key)
{
    for (int64_t i = 0; i < a->n; i++)
        if (!strcmp(a->list[i].key, key))
            return &a->list[i];
    return NULL;
}

void algorithms_add(Algorithms *a, const Algorithm *one)
{
    if (algorithms_find(a, one->key))
        return;
    a->list = xgrow(a->list, a->n, sizeof *a->list);
    a->list[a->n++] = *one;
}

void algorithms_close(Algorithms *a)
{
    free(a->list);
    *a = (Algorithms){0};
}
