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

void ls_phases_change(ls_phases *phases, int phase, uint64_t now_ns)
{
    assert(phase >= 0 && phase < LS_PHASES_MAX);
    const int before = ls_phases_now(phases);

    if (phase == before) return;
    if (before >= 0) {
        const uint64_t since = at(phases, phases->n_changes - 1)->ns;
        if (now_ns < since) now_ns = since;
        phases->ns[before] += now_ns - since;
    }
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
