/* profile_keys.c - the tables. */
#include "profile_keys.h"

#include <assert.h>

#include "profile.h"

#define N_OF(array)  (sizeof(array) / sizeof((array)[0]))
#define RATE_MOST    1e18
#define BYTES_MOST   1e16
#define LATENCY_MOST 1e9
#define WATTS_MOST   1e5
#define BYTES(t, k, m)                                                                             \
    {                                                                                              \
#k, LS_VALUE_BYTES, (m), offsetof(t, k)                                                    \
    }
#define REAL(t, k, m)                                                                              \
    {                                                                                              \
#k, LS_VALUE_REAL, (m), offsetof(t, k)                                                     \
    }
#define TRUTH(t, k)                                                                                \
    {                                                                                              \
#k, LS_VALUE_TRUTH, 1, offsetof(t, k)                                                      \
    }

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
static const char *const efficiency_words[] = {"op", "shape"};
static const char *const nvme_words[] = {"path"};

static const ls_quantity_key place_keys[] = {
    BYTES(ls_place, capacity_bytes, BYTES_MOST), BYTES(ls_place, page_bytes, 0x1p34),
    REAL(ls_place, read_bytes_per_s, RATE_MOST), REAL(ls_place, write_bytes_per_s, RATE_MOST),
    REAL(ls_place, latency_ns, LATENCY_MOST),    REAL(ls_place, best_threads, 1e6),
};

static const ls_quantity_key link_keys[] = {
    REAL(ls_link, bytes_per_s, RATE_MOST),
    REAL(ls_link, reverse_bytes_per_s, RATE_MOST),
    REAL(ls_link, both_bytes_per_s, RATE_MOST),
    REAL(ls_link, read_bytes_per_s, RATE_MOST),
    REAL(ls_link, write_bytes_per_s, RATE_MOST),
    REAL(ls_link, latency_ns, LATENCY_MOST),
    TRUTH(ls_link, coherent),
};

static const ls_quantity_key unit_keys[] = {
    REAL(ls_unit, cores, 1e6),
    REAL(ls_unit, bf16_flops_per_s, RATE_MOST),
    REAL(ls_unit, fp32_flops_per_s, RATE_MOST),
};

static const ls_quantity_key efficiency_keys[] = {REAL(ls_efficiency, fraction, 1)};

static const ls_quantity_key throttle_keys[] = {
    {"in_bytes_per_s", LS_VALUE_REAL, RATE_MOST, offsetof(ls_profile, throttle_in_bytes_per_s)},
    {"out_bytes_per_s", LS_VALUE_REAL, RATE_MOST, offsetof(ls_profile, throttle_out_bytes_per_s)},
};

static const ls_quantity_key limit_keys[] = {
    {"power_cap_watts", LS_VALUE_REAL, WATTS_MOST, offsetof(ls_power_cap, watts)},
};

const ls_quantity_key ls_profile_watts = {"watts", LS_VALUE_REAL, WATTS_MOST, 0};

#define WORDS(array, n_needed) .words = (array), .n_words = N_OF(array), .n_required = (n_needed)
#define KEYS(array)            .quantities = (array), .n_quantities = N_OF(array)

const ls_profile_keys ls_profile_keys_of[LS_PROFILE_SECTIONS] = {
    [LS_PROFILE_DOCUMENT] = {WORDS(document_words, 1)},
    [LS_PROFILE_MATCH] = {WORDS(match_words, 0)},
    [LS_PROFILE_BOUNDS] = {WORDS(bounds_words, 2)},
    [LS_PROFILE_PLACE] = {WORDS(place_words, 1), KEYS(place_keys)},
    [LS_PROFILE_LINK] = {WORDS(link_words, 2), KEYS(link_keys)},
    [LS_PROFILE_UNIT] = {WORDS(unit_words, 1), KEYS(unit_keys)},
    [LS_PROFILE_EFFICIENCY] = {WORDS(efficiency_words, 2), KEYS(efficiency_keys),
                               .n_quantities_required = 1},
    [LS_PROFILE_THROTTLE] = {KEYS(throttle_keys)},
    [LS_PROFILE_NVME] = {WORDS(nvme_words, 1)},
    [LS_PROFILE_LIMITS] = {KEYS(limit_keys)},
};

size_t ls_profile_count(const char *const *words)
{
    size_t n = 0;
    while (words[n] != NULL) n++;
    return n;
}
