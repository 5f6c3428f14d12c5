/* profile_keys.c - the tables. */
#include "profile_keys.h"

#include <assert.h>

#include "profile.h"

#define RATE_MOST 1e18 /* bytes/s, FLOP/s */

#define TABLE(array)                                                                               \
    {                                                                                              \
        (array), sizeof(array) / sizeof((array)[0])                                                \
    }

static const ls_profile_key place_keys[] = {
    {"capacity_bytes", LS_PROFILE_BYTES, 1e16, offsetof(ls_place, capacity_bytes)},
    {"page_bytes", LS_PROFILE_BYTES, 0x1p34, offsetof(ls_place, page_bytes)},
    {"read_bytes_per_s", LS_PROFILE_REAL, RATE_MOST, offsetof(ls_place, read_bytes_per_s)},
    {"write_bytes_per_s", LS_PROFILE_REAL, RATE_MOST, offsetof(ls_place, write_bytes_per_s)},
    {"latency_ns", LS_PROFILE_REAL, 1e9, offsetof(ls_place, latency_ns)},
    {"best_threads", LS_PROFILE_REAL, 1e6, offsetof(ls_place, best_threads)},
};
const ls_profile_keys ls_profile_place_keys = TABLE(place_keys);

static const ls_profile_key link_keys[] = {
    {"bytes_per_s", LS_PROFILE_REAL, RATE_MOST, offsetof(ls_link, bytes_per_s)},
    {"reverse_bytes_per_s", LS_PROFILE_REAL, RATE_MOST, offsetof(ls_link, reverse_bytes_per_s)},
    {"both_bytes_per_s", LS_PROFILE_REAL, RATE_MOST, offsetof(ls_link, both_bytes_per_s)},
    {"read_bytes_per_s", LS_PROFILE_REAL, RATE_MOST, offsetof(ls_link, read_bytes_per_s)},
    {"write_bytes_per_s", LS_PROFILE_REAL, RATE_MOST, offsetof(ls_link, write_bytes_per_s)},
    {"latency_ns", LS_PROFILE_REAL, 1e9, offsetof(ls_link, latency_ns)},
    {"coherent", LS_PROFILE_TRUTH, 1, offsetof(ls_link, coherent)},
};
const ls_profile_keys ls_profile_link_keys = TABLE(link_keys);

static const ls_profile_key unit_keys[] = {
    {"cores", LS_PROFILE_REAL, 1e6, offsetof(ls_unit, cores)},
    {"bf16_flops_per_s", LS_PROFILE_REAL, RATE_MOST, offsetof(ls_unit, bf16_flops_per_s)},
    {"fp32_flops_per_s", LS_PROFILE_REAL, RATE_MOST, offsetof(ls_unit, fp32_flops_per_s)},
    {"power_cap_watts", LS_PROFILE_REAL, 1e5, offsetof(ls_unit, power_cap_watts)},
};
const ls_profile_keys ls_profile_unit_keys = TABLE(unit_keys);

static const ls_profile_key fraction_keys[] = {
    {"fraction", LS_PROFILE_REAL, 1, offsetof(ls_efficiency, fraction)},
    {"bytes_per_s", LS_PROFILE_REAL, RATE_MOST, offsetof(ls_efficiency, bytes_per_s)},
    {"call_ns", LS_PROFILE_REAL, 1e9, offsetof(ls_efficiency, call_ns)},
};
const ls_profile_keys ls_profile_fraction_keys = TABLE(fraction_keys);

static const ls_profile_key watts_keys[] = {{"watts", LS_PROFILE_REAL, 1e5, 0}};
const ls_profile_keys ls_profile_watts_keys = TABLE(watts_keys);

static const ls_profile_key throttle_keys[] = {
    {"in_bytes_per_s", LS_PROFILE_REAL, RATE_MOST, offsetof(ls_profile, throttle_in_bytes_per_s)},
    {"out_bytes_per_s", LS_PROFILE_REAL, RATE_MOST, offsetof(ls_profile, throttle_out_bytes_per_s)},
};
const ls_profile_keys ls_profile_throttle_keys = TABLE(throttle_keys);

static const ls_profile_key limit_keys[] = {
    {"power_cap_watts", LS_PROFILE_REAL, 1e5, offsetof(ls_power_cap, watts)},
};
const ls_profile_keys ls_profile_limit_keys = TABLE(limit_keys);

/* ---- maps ----------------------------------------------------------------------------------- */

#define N_OF(array) (sizeof(array) / sizeof((array)[0]))

const char *const ls_profile_sources[] = {"measured", "published", "spec",
                                          "profile",  "assumed",   NULL};
const char *const ls_profile_places[] = {"hbm", "host", "nvme", NULL};
const char *const ls_profile_units[] = {"gpu", "cpu", NULL};
const char *const ls_profile_reaches[] = {"local", "remote", NULL};

static_assert(N_OF(ls_profile_places) == LS_PLACE_COUNT + 1, "a word for each kind of place");

static const char *const document_words[] = {"name",  "about", "emulated", "match", "places",
                                             "links", "units", "throttle", "nvme",  "limits"};
static const char *const match_words[] = {"gpu",      "not_gpu",   "c2c_link",
                                          "coherent", "hbm_bytes", "host_bytes"};
static const char *const bounds_words[] = {"least", "most"};
static const char *const place_words[] = {"kind"};
static const char *const link_words[] = {"from", "to", "via", "reach"};
static const char *const unit_words[] = {"kind", "model", "efficiency", "power_states"};
static const char *const efficiency_words[] = {"op", "shape", "kernel"};
static const char *const nvme_words[] = {"path"};

#define WORDS(array, n_needed)                                                                     \
    .words = (array), .n_words = N_OF(array), .n_words_required = (n_needed)

const ls_profile_map ls_profile_maps[LS_PROFILE_SECTIONS] = {
    [LS_PROFILE_DOCUMENT] = {WORDS(document_words, 1)},
    [LS_PROFILE_MATCH] = {WORDS(match_words, 0)},
    [LS_PROFILE_BOUNDS] = {WORDS(bounds_words, 2)},
    [LS_PROFILE_PLACE] = {WORDS(place_words, 1), .figures = &ls_profile_place_keys},
    [LS_PROFILE_LINK] = {WORDS(link_words, 2), .figures = &ls_profile_link_keys},
    [LS_PROFILE_UNIT] = {WORDS(unit_words, 1), .figures = &ls_profile_unit_keys},
    [LS_PROFILE_EFFICIENCY] = {WORDS(efficiency_words, 2), .figures = &ls_profile_fraction_keys},
    [LS_PROFILE_THROTTLE] = {.figures = &ls_profile_throttle_keys},
    [LS_PROFILE_NVME] = {WORDS(nvme_words, 1)},
    [LS_PROFILE_LIMITS] = {.figures = &ls_profile_limit_keys},
};

size_t ls_profile_count(const char *const *words)
{
    size_t n = 0;
    while (words[n] != NULL) n++;
    return n;
}
