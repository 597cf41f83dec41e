/* config_context -- rules about the ranks that share a sequence */
#include "config_rules.h"
#include "context.h"
#include <stdlib.h>

const char *config_context_kind(const Config *c, int layer)
{
    const List *l = &c->cp_comm_type;
    return l->v[layer < l->n ? layer : 0];
}

/* Key/value heads of a tensor rank. */
static int64_t groups_of_rank(const Config *c)
{
    int64_t tp = c->tensor_model_parallel_size;
    return c->num_query_groups < tp ? 1 : c->num_query_groups / tp;
}

/* Whether a context group of `shares` ranks cannot share out the heads of a layer. */
static int heads_remain(const Config *c, int64_t shares)
{
    return c->num_attention_heads / c->tensor_model_parallel_size % shares || groups_of_rank(c) % shares;
}

static void rules_context_heads(Check *k, const char *kind, int64_t shares)
{
    Config *c = k->cfg;
    int64_t tp = c->tensor_model_parallel_size, groups = groups_of_rank(c);
    RULE(ON3(cp_comm_type, num_attention_heads, num_query_groups), shares > 0 && heads_remain(c, shares),
         "%s over %ld ranks shares out %ld query heads and %ld key/value heads of a tensor rank; groups that "
         "fit: %s; or use p2p or allgather", kind, shares, c->num_attention_heads / tp, groups,
         check_nearest_divisors(groups, shares));
}

void rules_context(Check *k)
{
    Config *c = k->cfg;
    int64_t cp = c->context_parallel_size;
    const List *l = &c->cp_comm_type, *h = &c->hierarchical_context_parallel_sizes;
    int kinds[CONTEXT_KINDS + 1] = {0};
    for (int i = 0; i < l->n; i++) {
        kinds[context_kind(l->v[i])]++;
        RULE(ON1(cp_comm_type), context_kind(l->v[i]) == CONTEXT_KINDS,
             "'%.60s' is none of p2p, a2a, allgather, a2a+p2p", l->v[i]);
    }
    int many = l->n != 1 && l->n != c->num_layers;
    RULE(ON2(cp_comm_type, num_layers), many && !kinds[CONTEXT_KINDS] && (cp > 1 || !l->n),
         "%d kinds, but num_layers is %ld; give one for all layers, or one for each", l->n, c->num_layers);
    if (cp == 1 || kinds[CONTEXT_KINDS] ||
        !check_usable(k, ON3(cp_comm_type, context_parallel_size, hierarchical_context_parallel_sizes)))
        return;
    int64_t a = h->n ? strtol(h->v[0], NULL, 10) : 0, p = h->n > 1 ? strtol(h->v[1], NULL, 10) : 0;
    const int *sizes = ON2(hierarchical_context_parallel_sizes, context_parallel_size);
    int64_t fit = cp % 2 || heads_remain(c, 2) ? 1 : 2;
    RULE(sizes, kinds[CONTEXT_A2A_P2P] && (h->n != 2 || a * p != cp),
         "a2a+p2p needs two sizes, of an a2a group and the number of groups, whose product is "
         "context_parallel_size %ld; for example [%ld, %ld]", cp, fit, cp / fit);
    RULE(ON2(hierarchical_context_parallel_sizes, cp_comm_type), h->n && !kinds[CONTEXT_A2A_P2P],
         "sizes are for cp_comm_type a2a+p2p, which no layer has; leave them out");
    c->context_heads = kinds[CONTEXT_A2A_P2P] && a * p == cp ? a : 0;
    int64_t most = POSITION_RUNS / 2, whole = kinds[CONTEXT_ALLGATHER] || kinds[CONTEXT_A2A] ? cp : 1;
    RULE(ON2(cp_comm_type, context_parallel_size), whole > most || c->context_heads > most,
         "a group that gathers or exchanges all positions has at most %ld ranks; use p2p, or a2a+p2p with a "
         "smaller first size", most);
    if (!check_usable(k, ON3(tensor_model_parallel_size, num_attention_heads, num_query_groups)))
        return;
    if (kinds[CONTEXT_A2A])
        rules_context_heads(k, "a2a", cp);
    if (c->context_heads)
        rules_context_heads(k, "a2a+p2p", c->context_heads);
}
