/*
 * test_plan_order.c - the checker's verdict on the order is that of an exhaustive search.
 *
 * Thousands of small plans are drawn, from careless to minimal: random waits and carries; the same
 * with waits added until nothing races; with spare waits taken out as well; and that with one thing
 * changed.  The search (plan_test.h) unrolls all successions of four segments.
 */
#include "order.h"
#include "plan_test.h"

enum {
    PLANS = 6000,
    STEPS_MAX = 40,
    OPERANDS_MAX = 3, /* of a step */
    WAITS_MAX = 24,   /* of a step */
    CARRIES_MAX = 24,
    TENSORS_MAX = 16,
    UNIT = 16,        /* bytes that spans are multiples of */
    SHARED_UNITS = 6, /* of arena 1 */
};

/* At most so many. */
typedef struct plan_size {
    int64_t steps, segment_steps;
    int lanes;
    int64_t kept_units; /* of arena 0, where persistent tensors lie side by side */
    int32_t kept_tensors;
    int32_t shared_tensors; /* others; they lie one over the other in arena 1 */
    int32_t slot_tensors;   /* others; instead: they lie in arena 1, in slots side by side */
} plan_size;

static const plan_size small = {10, 5, 4, 8, 3, 3, 0};
static const plan_size large = {40, 15, 6, 30, 12, 0, 0};
static const plan_size staged = {30, 12, 6, 8, 3, 0, 8};

/* ---- a plan without allocations ------------------------------------------------------------ */

typedef struct drawn_plan {
    ls_plan plan;
    ls_plan_arena arenas[2];
    ls_plan_tensor tensors[TENSORS_MAX];
    ls_step steps[STEPS_MAX];
    ls_step_operand operands[STEPS_MAX * OPERANDS_MAX];
    ls_carry carries[CARRIES_MAX];
    int64_t waits[STEPS_MAX * WAITS_MAX];
    int64_t step_waits[STEPS_MAX][WAITS_MAX]; /* what pack_waits() puts into waits */
    int32_t n_step_waits[STEPS_MAX];
    ls_lane lanes[LS_LANE_COUNT];
    int n_lanes;
    int32_t holder[SHARED_UNITS]; /* whose content arena 1 has, while steps are drawn */
} drawn_plan;

static void pack_waits(drawn_plan *p)
{
    p->plan.n_waits = 0;
    for (int64_t s = 0; s < p->plan.n_steps; s++) {
        p->steps[s].first_wait = p->plan.n_waits;
        p->steps[s].n_waits = p->n_step_waits[s];
        for (int32_t w = 0; w < p->n_step_waits[s]; w++)
            p->waits[p->plan.n_waits++] = p->step_waits[s][w];
    }
}

static void add_wait(drawn_plan *p, int64_t step, int64_t wait)
{
    assert_true(p->n_step_waits[step] < WAITS_MAX);
    p->step_waits[step][p->n_step_waits[step]++] = wait;
    pack_waits(p);
}

/* wait: an index into the packed list */
static void drop_wait(drawn_plan *p, int64_t wait)
{
    for (int64_t s = 0; s < p->plan.n_steps; s++) {
        const int64_t w = wait - p->steps[s].first_wait;
        if (w < 0 || w >= p->n_step_waits[s]) continue;
        p->step_waits[s][w] = p->step_waits[s][--p->n_step_waits[s]];
        break;
    }
    pack_waits(p);
}

/* ---- drawing tensors and steps ------------------------------------------------------------- */

static void add_tensor(drawn_plan *p, int32_t arena, int64_t first, int64_t end)
{
    ls_plan_tensor *t = &p->tensors[p->plan.n_tensors];
    *t = (ls_plan_tensor){.tensor = {.layer = -1, .param = -1, .persistent = arena == 0},
                          .span = {arena, (uint64_t)first * UNIT, (uint64_t)(end - first) * UNIT},
                          .group = p->plan.n_tensors};
    snprintf(t->tensor.name, sizeof t->tensor.name, "t%d", p->plan.n_tensors++);
}

/* A slot's tensors lie on the same bytes and are one group. */
static void draw_slots(drawn_plan *p, dice *d, int32_t n_tensors)
{
    int64_t at = 0;

    while (n_tensors > 0 && at < SHARED_UNITS) {
        const int64_t room = SHARED_UNITS - at, end = at + 1 + below(d, room < 3 ? room : 3);
        const int32_t first = p->plan.n_tensors, n = 1 + (int32_t)below(d, 3);
        for (int32_t i = 0; i < n && n_tensors > 0; i++, n_tensors--) {
            add_tensor(p, 1, at, end);
            p->tensors[first + i].group = first;
        }
        at = end;
    }
}

static void draw_tensors(drawn_plan *p, dice *d, const plan_size *size)
{
    p->arenas[0] = (ls_plan_arena){LS_PLACE_HOST, (uint64_t)size->kept_units * UNIT};
    p->arenas[1] = (ls_plan_arena){LS_PLACE_HOST, SHARED_UNITS * UNIT};
    p->plan.n_arenas = 2;
    for (int64_t at = 0; at < size->kept_units && p->plan.n_tensors < size->kept_tensors;) {
        const int64_t room = size->kept_units - at;
        const int64_t end = at + 1 + below(d, room < small.kept_units ? room : small.kept_units);
        add_tensor(p, 0, at, end);
        at = end;
    }
    for (int64_t n = below(d, size->shared_tensors + 1); n > 0; n--) {
        const int64_t first = below(d, SHARED_UNITS);
        add_tensor(p, 1, first, first + 1 + below(d, SHARED_UNITS - first));
    }
    for (int32_t t = 0; t < p->plan.n_tensors; t++)
        if (chance(d, 30)) p->tensors[t].group = (int32_t)below(d, t + 1);
    draw_slots(p, d, size->slot_tensors);
    p->plan.n_groups = p->plan.n_tensors;
}

/* A part of a tensor; of what persists no longer than a segment only what it wrote is read. */
static ls_step_operand draw_operand(const drawn_plan *p, dice *d)
{
    ls_step_operand o = {{-1, 0, 0}, -1, LS_ACCESS_NONE};
    if (chance(d, 5)) return o; /* absent */

    o.tensor = (int32_t)below(d, p->plan.n_tensors);
    const ls_span *whole = &p->tensors[o.tensor].span;
    const int64_t units = (int64_t)(whole->bytes / UNIT);
    const int64_t first = chance(d, 50) ? 0 : below(d, units);
    const int64_t n = chance(d, 50) ? units - first : 1 + below(d, units - first);
    o.span = (ls_span){whole->arena, whole->offset + (uint64_t)first * UNIT, (uint64_t)n * UNIT};
    const int64_t kind = below(d, 20);
    o.access = kind < 9 ? LS_ACCESS_READ : kind < 15 ? LS_ACCESS_WRITE : LS_ACCESS_READ_WRITE;
    for (int64_t u = 0; u < n && whole->arena == 1; u++)
        if (p->holder[o.span.offset / UNIT + (uint64_t)u] != o.tensor) o.access = LS_ACCESS_WRITE;
    return o;
}

static void draw_step(drawn_plan *p, dice *d)
{
    ls_step *step = &p->steps[p->plan.n_steps++];
    *step = (ls_step){.kind = LS_CALL_SAVE,
                      .phase = LS_PHASE_SAVE,
                      .layer = -1,
                      .chunk = -1,
                      .lane = p->lanes[below(d, p->n_lanes)],
                      .first_operand = p->plan.n_operands};
    for (int64_t n = 1 + below(d, OPERANDS_MAX); n > 0; n--) {
        p->operands[p->plan.n_operands++] = draw_operand(p, d);
        step->n_operands++;
    }
    for (int32_t i = 0; i < step->n_operands; i++) {
        const ls_step_operand *o = &p->operands[step->first_operand + i];
        if (o->span.arena != 1 || !(o->access & LS_ACCESS_WRITE)) continue;
        for (uint64_t u = 0; u < o->span.bytes / UNIT; u++)
            p->holder[o->span.offset / UNIT + u] = o->tensor;
    }
}

/* Up to four segments, in any order in the table. */
static void draw_steps(drawn_plan *p, dice *d, const plan_size *size)
{
    const uint64_t shuffle = (uint64_t)below(d, 1 << 20);

    for (uint64_t i = 0; i < LS_SEGMENT_COUNT; i++) {
        const uint64_t s = ls_rng_permute(shuffle, 1, i, LS_SEGMENT_COUNT);
        const int64_t room = size->steps - p->plan.n_steps, n = below(d, size->segment_steps + 1);
        p->plan.segment_first[s] = p->plan.n_steps;
        p->plan.segment_steps[s] = n < room ? n : room;
        for (int u = 0; u < SHARED_UNITS; u++) p->holder[u] = -1;
        for (int64_t k = 0; k < p->plan.segment_steps[s]; k++) draw_step(p, d);
    }
}

static void clear_plan(drawn_plan *p)
{
    memset(p, 0, sizeof *p);
    p->plan.arenas = p->arenas;
    p->plan.tensors = p->tensors;
    p->plan.steps = p->steps;
    p->plan.operands = p->operands;
    p->plan.carries = p->carries;
    p->plan.waits = p->waits;
}

static void draw_plan(drawn_plan *p, dice *d, const plan_size *size)
{
    clear_plan(p);
    p->n_lanes = 2 + (int)below(d, size->lanes - 1);
    const uint64_t shuffle = (uint64_t)below(d, 1 << 20);
    for (uint64_t i = 0; i < LS_LANE_COUNT; i++)
        p->lanes[i] = (ls_lane)ls_rng_permute(shuffle, 2, i, LS_LANE_COUNT);
    draw_tensors(p, d, size);
    draw_steps(p, d, size);
}

/* ---- drawing waits and carries ------------------------------------------------------------- */

/* A step of this lane in this segment, at or after another; -1: there is none. */
static int64_t draw_end(const drawn_plan *p, dice *d, ls_lane lane, int segment, int64_t from)
{
    int64_t found[STEPS_MAX], n = 0;
    const int64_t first = p->plan.segment_first[segment];

    for (int64_t s = first; s < first + p->plan.segment_steps[segment]; s++)
        if (p->steps[s].lane == lane && s >= from) found[n++] = s;
    if (n == 0) return -1;
    return chance(d, 60) ? found[n - 1] : found[below(d, n)];
}

static int32_t draw_carry(drawn_plan *p, dice *d, ls_lane lane)
{
    ls_carry *carry = &p->carries[p->plan.n_carries];
    assert_true(p->plan.n_carries < CARRIES_MAX);
    *carry = (ls_carry){.lane = lane};
    for (int s = 0; s < LS_SEGMENT_COUNT; s++)
        carry->ends[s] = chance(d, 25) ? -1 : draw_end(p, d, lane, s, 0);
    return p->plan.n_carries++;
}

static void draw_waits(drawn_plan *p, dice *d)
{
    for (int64_t n = below(d, 4); n > 0; n--) draw_carry(p, d, p->lanes[below(d, p->n_lanes)]);
    for (int64_t s = 0; s < p->plan.n_steps; s++) {
        const int64_t first = p->plan.segment_first[ls_plan_segment_of(&p->plan, s)];
        for (int64_t earlier = first; earlier < s; earlier++)
            if (chance(d, 20)) add_wait(p, s, earlier);
        for (int32_t c = 0; c < p->plan.n_carries; c++)
            if (chance(d, 20)) add_wait(p, s, ls_wait_carry(c));
    }
}

/* A carry that, once waited for, orders a step of another segment before; drawn if there is none.
 */
static int32_t carry_after(drawn_plan *p, dice *d, int64_t step)
{
    const ls_segment_kind segment = ls_plan_segment_of(&p->plan, step);
    const int64_t start = below(d, p->plan.n_carries + 1);

    for (int32_t i = 0; i < p->plan.n_carries; i++) {
        const int32_t c = (int32_t)((start + i) % p->plan.n_carries);
        if (p->carries[c].lane == p->steps[step].lane && p->carries[c].ends[segment] >= step)
            return c;
    }
    const int32_t c = draw_carry(p, d, p->steps[step].lane);
    p->carries[c].ends[segment] = draw_end(p, d, p->steps[step].lane, (int)segment, step);
    return c;
}

static void add_waits_until_ordered(drawn_plan *p, dice *d, order_model *m)
{
    while (find_race(m, -1))
        add_wait(p, m->later,
                 m->same_segment ? m->earlier : ls_wait_carry(carry_after(p, d, m->earlier)));
}

static void drop_spare_waits(drawn_plan *p, dice *d, order_model *m)
{
    for (int64_t tried = 0, at = below(d, p->plan.n_waits + 1); tried < p->plan.n_waits;) {
        at = (at + 1) % p->plan.n_waits;
        if (find_race(m, at)) {
            tried++;
            continue;
        }
        drop_wait(p, at);
        tried = 0;
    }
}

static void change_one_thing(drawn_plan *p, dice *d)
{
    const int64_t step = below(d, p->plan.n_steps), kind = below(d, 4);
    const int64_t first = p->plan.segment_first[ls_plan_segment_of(&p->plan, step)];

    if (kind == 0 && p->plan.n_waits > 0) {
        drop_wait(p, below(d, p->plan.n_waits));
    } else if (kind == 1 && step > first) {
        add_wait(p, step, first + below(d, step - first));
    } else if (kind == 2 && p->plan.n_carries > 0) {
        add_wait(p, step, ls_wait_carry(below(d, p->plan.n_carries)));
    } else if (p->plan.n_carries > 0) {
        ls_carry *carry = &p->carries[below(d, p->plan.n_carries)];
        const int s = (int)below(d, LS_SEGMENT_COUNT);
        carry->ends[s] = chance(d, 50) ? -1 : draw_end(p, d, carry->lane, s, 0);
    }
}

/* ---- comparing ----------------------------------------------------------------------------- */

static void print_plan(const ls_plan *p)
{
    char text[192];

    for (int32_t c = 0; c < p->n_carries; c++) {
        print_error("carry %d, lane %s:", c, ls_lane_name(p->carries[c].lane));
        for (int s = 0; s < LS_SEGMENT_COUNT; s++)
            print_error(" %lld", (long long)p->carries[c].ends[s]);
        print_error("\n");
    }
    for (int64_t s = 0; s < p->n_steps; s++) {
        const ls_step *step = &p->steps[s];
        ls_plan_describe_step(p, s, text, sizeof text);
        print_error("%s: %s:", ls_segment_name(ls_plan_segment_of(p, s)), text);
        for (int32_t i = 0; i < step->n_operands; i++) {
            const ls_step_operand *o = &p->operands[step->first_operand + i];
            print_error(" %s t%d %d:%d+%d", (const char *[]){"-", "r", "w", "rw"}[o->access],
                        o->tensor, o->span.arena, (int)(o->span.offset / UNIT),
                        (int)(o->span.bytes / UNIT));
        }
        print_error("; waits");
        for (int32_t w = 0; w < step->n_waits; w++)
            print_error(" %lld", (long long)p->waits[step->first_wait + w]);
        print_error("\n");
    }
}

static verdict search_verdict(order_model *m)
{
    if (find_race(m, -1)) return VERDICT_RACE;
    return find_spare_wait(m) >= 0 ? VERDICT_SPARE : VERDICT_OK;
}

static verdict compare_verdicts(const ls_plan *plan, uint64_t seed, order_model *m)
{
    static const char *const names[VERDICT_COUNT] = {"ok", "race", "spare wait"};
    const verdict expected = search_verdict(m), found = check_verdict(plan);
    const bool named = found == VERDICT_OK || (found == VERDICT_RACE ? race_is_named_rightly(m)
                                                                     : spare_is_named_rightly(m));

    if (found == expected && named) return found;
    print_plan(plan);
    print_error("seed %llu: the checker says %s, the search says %s\n", (unsigned long long)seed,
                names[found], names[expected]);
    if (found != VERDICT_OK) print_error("%s\n", ls_error());
    fail_msg("%s", found != expected ? "the verdicts differ" : "the message names the wrong steps");
    return found;
}

static void verdicts_are_those_of_a_search(void **state)
{
    int64_t counts[VERDICT_COUNT] = {0}, proven_waits = 0, proven_carries = 0;

    (void)state;
    for (uint64_t seed = 0; seed < PLANS; seed++) {
        dice d = {seed, 0};
        drawn_plan p;
        draw_plan(&p, &d, &small);
        if (p.plan.n_steps == 0) continue;
        order_model m = open_order_model(&p.plan, 4);
        draw_waits(&p, &d);
        if (seed % 4 >= 1) add_waits_until_ordered(&p, &d, &m);
        if (seed % 4 >= 2) drop_spare_waits(&p, &d, &m);
        if (seed % 4 >= 3) change_one_thing(&p, &d);
        const verdict v = compare_verdicts(&p.plan, seed, &m);
        counts[v]++;
        for (int64_t w = 0; w < p.plan.n_waits && v == VERDICT_OK; w++) {
            proven_waits += !ls_wait_is_carry(p.waits[w]);
            proven_carries += ls_wait_is_carry(p.waits[w]);
        }
        close_order_model(&m);
    }
    for (int v = 0; v < VERDICT_COUNT; v++) assert_true(counts[v] > PLANS / 8);
    assert_true(proven_waits > PLANS / 2 && proven_carries > PLANS / 2);
}

/*
 * Step 2 waits for what step 1 has waited for.  Step 1 needs that only for step 3, which comes
 * later: whoever tries to do without the one must not conclude that the other is needed.
 */
static void a_spare_wait_behind_a_needed_one_is_found(void **state)
{
    static const ls_lane lanes[] = {LS_LANE_DISK_IN, LS_LANE_COMPUTE, LS_LANE_COMPUTE,
                                    LS_LANE_HOST};
    static const ls_access accesses[] = {LS_ACCESS_WRITE, LS_ACCESS_NONE, LS_ACCESS_READ,
                                         LS_ACCESS_READ};
    drawn_plan p;

    (void)state;
    clear_plan(&p);
    p.arenas[0] = (ls_plan_arena){LS_PLACE_HOST, UNIT};
    p.plan.n_arenas = 1;
    add_tensor(&p, 0, 0, 1);
    for (int64_t s = 0; s < COUNT_OF(lanes); s++) {
        p.operands[s] = (ls_step_operand){p.tensors[0].span, 0, accesses[s]};
        p.steps[s] = (ls_step){.lane = lanes[s], .first_operand = s, .n_operands = 1};
    }
    p.plan.n_operands = p.plan.n_steps = COUNT_OF(lanes);
    p.plan.segment_steps[LS_SEGMENT_DRAIN] = COUNT_OF(lanes);
    add_wait(&p, 1, 0);
    add_wait(&p, 3, 1);
    assert_int_equal(check_verdict(&p.plan), VERDICT_OK);
    add_wait(&p, 2, 0);
    assert_int_equal(check_verdict(&p.plan), VERDICT_SPARE);
    assert_int_equal(number_in_error("step ", 0), 2);
}

/* The argument at the top of plan_test.h. */
static void longer_successions_show_nothing_new(void **state)
{
    int64_t races = 0, searched = 0;

    (void)state;
    for (uint64_t seed = 0; seed < 200; seed++) {
        dice d = {seed, 0};
        drawn_plan p;
        draw_plan(&p, &d, &small);
        if (p.plan.n_steps == 0) continue;
        draw_waits(&p, &d);
        order_model two = open_order_model(&p.plan, 2);
        order_model six = open_order_model(&p.plan, 6);
        if (seed % 2) add_waits_until_ordered(&p, &d, &two);
        for (int64_t w = -1; w < p.plan.n_waits; w++) {
            const bool race = find_race(&two, w);
            if (find_race(&six, w) != race)
                fail_msg("seed %llu, without wait %lld", (unsigned long long)seed, (long long)w);
            races += race;
            searched++;
        }
        close_order_model(&two);
        close_order_model(&six);
    }
    assert_true(races > 100 && searched - races > 100);
}

/* What the planner orders is ordered, whatever the steps are.  (It knows tensors and slots, no
 * other bytes in common: layout lets no two lanes share any.) */
static void planned_waits_leave_no_race(void **state)
{
    (void)state;
    for (uint64_t seed = 0; seed < PLANS / 4; seed++) {
        dice d = {seed, 0};
        drawn_plan p;
        plan_size size = seed % 3 == 0 ? small : seed % 3 == 1 ? large : staged;
        size.shared_tensors = 0;
        draw_plan(&p, &d, &size);
        p.plan.waits = NULL;
        p.plan.carries = NULL;
        assert_int_equal(ls_plan_order(&p.plan), LS_OK);
        order_model m = open_order_model(&p.plan, 2);
        if (find_race(&m, -1)) fail_msg("seed %llu", (unsigned long long)seed);
        compare_verdicts(&p.plan, seed, &m);
        close_order_model(&m);
        free(p.plan.waits);
        free(p.plan.carries);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(verdicts_are_those_of_a_search),
        cmocka_unit_test(a_spare_wait_behind_a_needed_one_is_found),
        cmocka_unit_test(longer_successions_show_nothing_new),
        cmocka_unit_test(planned_waits_leave_no_race),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
