/* phases.c - a ring of changes, searched from its young end: pieces are recent. */
#include "phases.h"

#include <assert.h>
#include <string.h>

static const ls_phase_change *at(const ls_phases *p, int64_t index)
{
    return &p->changes[index % LS_PHASE_CHANGES];
}

static int64_t oldest(const ls_phases *p)
{
    return p->n_changes > LS_PHASE_CHANGES ? p->n_changes - LS_PHASE_CHANGES : 0;
}

int ls_phases_now(const ls_phases *phases)
{
    return phases->n_changes > 0 ? at(phases, phases->n_changes - 1)->phase : -1;
}

/* Whether the short phase before the next one is a pause, or an interruption of that one. */
static bool is_nothing(const ls_phases *p, int next)
{
    if (p->n_changes - oldest(p) < 2) return false;
    return ls_phases_now(p) == p->idle || at(p, p->n_changes - 2)->phase == next;
}

/* Take back the latest change, which nothing came of. */
static uint64_t forget_latest(ls_phases *p)
{
    const ls_phase_change latest = *at(p, p->n_changes - 1);
    const ls_phase_change *before = at(p, p->n_changes - 2);

    p->spans[latest.phase]--;
    p->ns[before->phase] -= latest.ns - before->ns;
    p->n_changes--;
    return latest.ns;
}

void ls_phases_change(ls_phases *phases, int phase, uint64_t now_ns)
{
    assert(phase >= 0 && phase < LS_PHASES_MAX);

    if (phase == ls_phases_now(phases)) return;
    if (phases->n_changes > 0) {
        const uint64_t since = at(phases, phases->n_changes - 1)->ns;
        if (now_ns < since) now_ns = since;
        if (now_ns - since < LS_PHASE_NS_MIN && is_nothing(phases, phase))
            now_ns = forget_latest(phases);
    }
    const int before = ls_phases_now(phases);
    if (phase == before) return;
    if (before >= 0) phases->ns[before] += now_ns - at(phases, phases->n_changes - 1)->ns;
    phases->changes[phases->n_changes++ % LS_PHASE_CHANGES] = (ls_phase_change){now_ns, phase};
    phases->spans[phase]++;
}

void ls_phases_times(const ls_phases *phases, uint64_t now_ns, uint64_t ns[LS_PHASES_MAX])
{
    memcpy(ns, phases->ns, sizeof phases->ns);
    if (phases->n_changes == 0) return;
    const ls_phase_change *last = at(phases, phases->n_changes - 1);
    if (now_ns > last->ns) ns[last->phase] += now_ns - last->ns;
}

void ls_phases_share(const ls_phases *phases, const ls_energy_piece *piece, ls_phase_sums *sums)
{
    uint64_t end = piece->to_ns;

    for (int64_t i = phases->n_changes - 1; i >= oldest(phases) && end > piece->from_ns; i--) {
        const ls_phase_change *change = at(phases, i);
        if (change->ns >= end) continue;
        const uint64_t from = change->ns > piece->from_ns ? change->ns : piece->from_ns;
        sums->joules[change->phase] += ls_energy_piece_joules(piece, from, end);
        sums->covered_ns[change->phase] += end - from;
        end = from;
    }
}
