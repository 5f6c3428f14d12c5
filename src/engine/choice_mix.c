/*
 * choice_mix.c - more than one policy in a model.
 *
 * Bytes and time grow by layers.  So where a policy has no room, its last layers may stay in device
 * memory, as many as the host lacks room for; and where that is not enough, the first layers take a
 * policy that keeps less.  How many of each is a division; the plan measured says how far it is
 * off, and the next try corrects it.
 */
#include <math.h>
#include <stdlib.h>

#include "choice_walk.h"

#define LEANER         4 /* rungs from the first that fits on, that are mixed with richer ones */
#define MIXTURES_MAX   (LS_SAVE_POLICIES * LEANER)
#define MIXTURES_TRIED 4
#define CORRECTIONS    4

typedef struct mixture {
    int rich, lean;
    int32_t n_rich, n_held;
    double layer_bytes; /* that a layer more of the rich one takes */
    double value;       /* expected */
} mixture;

static int32_t count_layers(const ls_searching *s)
{
    return (int32_t)s->trial->model->num_hidden_layers;
}

static void append_range(ls_saves *saves, int32_t first, int32_t last, int policy, int place)
{
    if (last < first) return;
    saves->ranges[saves->n_ranges++] = (ls_save_range){
        .first = first, .last = last, .policy = ls_save_ladder[policy], .place = place};
}

/* The last n_rich layers take the rich policy, the last n_held of all stay in device memory. */
static ls_saves make_saves(int32_t n_layers, const mixture *m)
{
    ls_saves saves = {.n_layers = n_layers};
    const int32_t first_rich = n_layers - m->n_rich, first_held = n_layers - m->n_held;
    const int32_t lean_end = first_held < first_rich ? first_held : first_rich;

    append_range(&saves, 0, lean_end - 1, m->lean, 0);
    append_range(&saves, first_rich, first_held - 1, m->rich, 0);
    append_range(&saves, first_held, n_layers - 1, m->rich, 1 + LS_PLACE_HBM);
    return saves;
}

/* Host bytes of a layer more of one policy than of another; lean -1: than of nothing. */
static double count_layer_bytes(const ls_searching *s, bool layer_major, int rich, int lean)
{
    double bytes = ls_search_kept_bytes(s, layer_major, rich);

    if (lean >= 0) bytes -= ls_search_kept_bytes(s, layer_major, lean);
    return bytes / (double)count_layers(s);
}

/* Room that a plan leaves; negative: that it lacks. */
static double spare_bytes(const ls_searching *s, ls_place_kind place, const ls_plan_cost *cost)
{
    return (double)s->limit[place] - (double)cost->place_bytes[place];
}

static ls_status try_mixture(ls_searching *s, const ls_choices *base, const mixture *m, int *tried)
{
    ls_choices choices = *base;

    choices.saves = make_saves(count_layers(s), m);
    LS_TRY(ls_search_try(s, &choices, NULL, tried));
    if (*tried < 0) return LS_OK;
    ls_candidate *c = &s->kept[*tried];
    c->rich = m->rich;
    c->lean = m->lean;
    c->n_rich = m->n_rich;
    c->n_held = m->n_held;
    return LS_OK;
}

/* ---- in device memory ---------------------------------------------------------------------- */

static bool may_hold(const ls_searching *s)
{
    const ls_run_config *c = s->trial->config;

    return s->trial->hardware != NULL && s->trial->hardware->has_device && c->save_auto &&
           c->places[LS_CLASS_X] + c->places[LS_CLASS_O] + c->places[LS_CLASS_KV] == 0;
}

/*
 * Bytes that are lacking wherever layers lie: those that move into device memory take there what
 * they leave, and so do the gradients of x that go the other way where x no longer passes whole.
 * Weights can give way to slots.
 */
static double count_lacking_bytes(const ls_searching *s, const ls_candidate *c)
{
    const bool copied = c->choices.placement.classes[LS_CLASS_WEIGHTS].mode == LS_MODE_RESIDENT;

    return -spare_bytes(s, LS_PLACE_HOST, &c->cost) - spare_bytes(s, LS_PLACE_HBM, &c->cost) -
           (copied ? s->weight_bytes : 0);
}

/* Of a policy that the host lacks room for: how many layers device memory has room for, or fewer if
 * they are enough. */
static ls_status hold(ls_searching *s, const ls_choices *base, int rich, const ls_plan_cost *cost,
                      int32_t *n_held)
{
    const int32_t L = count_layers(s);
    const double layer = count_layer_bytes(s, base->layer_major, rich, -1);
    double lacking = -spare_bytes(s, LS_PLACE_HOST, cost);
    int32_t most = L;

    *n_held = 0;
    for (int n = 0; n < CORRECTIONS && layer > 0 && lacking > 0 && *n_held < most; n++) {
        const double wanted = (double)*n_held + ceil(lacking / layer);
        const mixture m = {rich, rich, L, (int32_t)fmin(wanted, (double)most), layer, 0};
        int tried;
        LS_TRY(try_mixture(s, base, &m, &tried));
        if (tried < 0) return LS_OK;
        const double spare = spare_bytes(s, LS_PLACE_HBM, &s->kept[tried].cost);
        if (spare < 0) {
            most = m.n_held - (int32_t)fmin(ceil(-spare / layer), (double)m.n_held);
            lacking = (double)(most - *n_held) * layer;
            continue;
        }
        *n_held = m.n_held;
        lacking = -spare_bytes(s, LS_PLACE_HOST, &s->kept[tried].cost);
    }
    return LS_OK;
}

ls_status ls_search_hold_more(ls_searching *s, int from)
{
    const ls_candidate origin = s->kept[from];
    const int32_t L = count_layers(s);
    mixture m = {origin.rich, origin.lean, origin.n_rich, 0, 0, 0};

    if (!may_hold(s) || origin.rich < 0) return LS_OK;
    const double layer = count_layer_bytes(s, origin.choices.layer_major, m.rich, -1);
    const double room = spare_bytes(s, LS_PLACE_HBM, &origin.cost);
    if (m.rich == m.lean) m.n_rich = L;
    const double layers = layer > 0 && room > 0 ? floor(room / layer) : 0;
    for (m.n_held = origin.n_held + (int32_t)fmin(layers, (double)(L - origin.n_held));
         m.n_held > origin.n_held; m.n_held = (m.n_held + origin.n_held) / 2) {
        int tried;
        LS_TRY(try_mixture(s, &origin.choices, &m, &tried));
        if (tried < 0 || s->kept[tried].fits) return LS_OK;
    }
    return LS_OK;
}

/* ---- two policies -------------------------------------------------------------------------- */

/* Try a mixture, with fewer rich layers where it has no room, with more where it has too much. */
static ls_status fit_mixture(ls_searching *s, const ls_choices *base, mixture m)
{
    const int32_t L = count_layers(s);
    int32_t too_many = L, enough = 0;

    for (int n = 0; n < CORRECTIONS && m.n_rich > enough && m.n_rich < too_many; n++) {
        int tried;
        LS_TRY(try_mixture(s, base, &m, &tried));
        if (tried < 0) return LS_OK;
        const ls_candidate *c = &s->kept[tried];
        const double spare = spare_bytes(s, LS_PLACE_HOST, &c->cost);
        if (c->fits)
            enough = m.n_rich;
        else
            too_many = m.n_rich;
        if (!c->fits && spare >= 0) return LS_OK; /* it is device memory that has no room */
        const double next = (double)m.n_rich + floor(spare / m.layer_bytes);
        m.n_rich = (int32_t)fmax(fmin(next, (double)too_many - 1), 0.0);
    }
    return LS_OK;
}

/* What is known of the policies before they are mixed. */
typedef struct policies {
    const int *measured; /* [LS_SAVE_POLICIES] */
    int32_t held[LS_SAVE_POLICIES];
    int first;
} policies;

static int list_mixtures(const ls_searching *s, const ls_choices *base, const policies *p,
                         mixture list[MIXTURES_MAX])
{
    const double L = (double)count_layers(s);
    int n = 0;

    for (int rich = p->first - 1; rich >= 0; rich--)
        for (int lean = p->first; lean < LS_SAVE_POLICIES && lean < p->first + LEANER; lean++) {
            if (p->measured[lean] < 0 || p->measured[rich] < 0) continue;
            const ls_candidate *a = &s->kept[p->measured[rich]];
            const ls_candidate *b = &s->kept[p->measured[lean]];
            const double layer = count_layer_bytes(s, base->layer_major, rich, lean);
            const double held = count_layer_bytes(s, base->layer_major, rich, -1);
            const double room = spare_bytes(s, LS_PLACE_HOST, &b->cost);
            if (!b->fits || layer <= 0 || spare_bytes(s, LS_PLACE_HOST, &a->cost) >= 0) continue;
            const double layers = fmin(floor(room / layer + p->held[rich] * held / layer), L - 1);
            if (layers < 1) continue;
            const double from = ls_search_value(s, &b->cost), to = ls_search_value(s, &a->cost);
            list[n++] = (mixture){rich,          lean,  (int32_t)layers,
                                  p->held[rich], layer, from + (to - from) * layers / L};
        }
    return n;
}

static int compare_mixtures(const void *a, const void *b)
{
    const mixture *x = a, *y = b;

    if (x->value != y->value) return x->value < y->value ? -1 : 1;
    if (x->rich != y->rich) return x->rich - y->rich;
    return x->lean - y->lean;
}

/* From the richest on, until one fits and computing bounds it: those below compute more.
 *   has_lean  a policy fits on the host: some layers of a richer one are of use, else all or none
 */
static ls_status hold_richest(ls_searching *s, const ls_choices *base, bool has_lean, policies *p)
{
    for (int rich = 0; rich < p->first && may_hold(s); rich++) {
        if (p->measured[rich] < 0) continue; /* no room, wherever it lies */
        const ls_candidate *c = &s->kept[p->measured[rich]];
        const ls_plan_cost cost = c->cost;
        const int before = s->n_kept;
        const double lacking = count_lacking_bytes(s, c);
        /* a layer's bytes may find others to share with there */
        if (!has_lean && lacking > count_layer_bytes(s, base->layer_major, rich, -1)) {
            s->lacking_bytes = fmin(s->lacking_bytes, lacking);
            s->result->n_pruned++;
            continue;
        }
        LS_TRY(hold(s, base, rich, &cost, &p->held[rich]));
        for (int k = before; k < s->n_kept; k++)
            if (s->kept[k].fits && ls_search_is_bound_by_compute(s, k)) return LS_OK;
    }
    return LS_OK;
}

ls_status ls_search_mix(ls_searching *s, const ls_choices *base, int measured[LS_SAVE_POLICIES],
                        int first)
{
    const int n_lean = first >= 0 ? LS_SAVE_POLICIES : s->n_policies; /* none leaner unasked */
    policies p = {.measured = measured, .first = first >= 0 ? first : s->n_policies};
    mixture list[MIXTURES_MAX];

    LS_TRY(hold_richest(s, base, first >= 0, &p));
    for (int lean = p.first; lean < n_lean && lean < p.first + LEANER; lean++)
        if (measured[lean] < 0) LS_TRY(ls_search_try_policy(s, base, lean, &measured[lean]));
    const int n = list_mixtures(s, base, &p, list);
    qsort(list, (size_t)n, sizeof list[0], compare_mixtures);
    for (int i = 0; i < n && i < MIXTURES_TRIED; i++) {
        const bool is_slower =
            s->best >= 0 && list[i].value >= ls_search_value(s, &s->kept[s->best].cost);
        if (is_slower)
            s->result->n_pruned++;
        else
            LS_TRY(fit_mixture(s, base, list[i]));
    }
    return LS_OK;
}
