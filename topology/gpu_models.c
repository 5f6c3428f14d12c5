/*
 * gpu_models.c - what is known of a GPU by the name of its product: only what holds for every part
 * sold under it.  Sizes never follow from a name ("480GB" is Grace's memory, not the GPU's).
 */
#include <stdio.h>
#include <string.h>

#include "discover.h"

/* A word of the product's name, and whether such a part hangs on a C2C link. */
static const struct {
    const char *word;
    bool c2c;
} families[] = {
    {"GH200", true}, {"GB200", true}, {"GB300", true}, {"GB10", true},
    {"H200", false}, {"H100", false}, {"H800", false}, {"B200", false},
    {"A100", false}, {"A800", false}, {"L40S", false},
};

/* PCI device ids of NVIDIA (pci.ids): for files that hold no product name. */
static const struct {
    unsigned id;
    const char *model;
} devices[] = {
    {0x2342, "NVIDIA GH200"},     {0x2345, "NVIDIA GH200"},    {0x2348, "NVIDIA GH200"},
    {0x2335, "NVIDIA H200"},      {0x233b, "NVIDIA H200 NVL"}, {0x2330, "NVIDIA H100"},
    {0x2331, "NVIDIA H100 PCIe"},
};

const char *ls_gpu_model_by_device(unsigned device_id)
{
    for (size_t d = 0; d < sizeof devices / sizeof devices[0]; d++)
        if (devices[d].id == device_id) return devices[d].model;
    return NULL;
}

bool ls_label_has_word(const char *label, const char *word)
{
    const size_t length = strlen(word);

    while (*label != '\0') {
        const size_t n = strcspn(label, " -");
        if (n == length && strncmp(label, word, n) == 0) return true;
        label += n;
        label += *label != '\0';
    }
    return false;
}

/* The unified-memory driver's own setting decides on ATS where there is a C2C link. */
static ls_quantity coherent_of(const ls_topology *t, const ls_unit *gpu)
{
    const ls_quantity c2c = gpu->facts.c2c_link, ats = t->system.ats_mode;

    if (!ls_known(c2c)) return (ls_quantity){0};
    if (c2c.value == 0) return ls_quantity_make(0, c2c.source, c2c.from);
    if (ls_known(ats)) return ls_discovered(ats.value != 0, "uvm_ats_mode");
    return ls_quantity_make(1, LS_SOURCE_ASSUMED, "C2C link, driver default");
}

void ls_gpu_model_fill(ls_topology *t, ls_unit *gpu)
{
    for (size_t f = 0; f < sizeof families / sizeof families[0]; f++)
        if (ls_label_has_word(gpu->model, families[f].word))
            ls_quantity_fill(&gpu->facts.c2c_link,
                             ls_quantity_make(families[f].c2c, LS_SOURCE_SPEC, "product name"));
    if (strcmp(t->system.architecture, "x86_64") == 0)
        ls_quantity_fill(&gpu->facts.c2c_link,
                         ls_quantity_make(0, LS_SOURCE_ASSUMED, "x86_64 host"));
    ls_quantity_fill(&gpu->facts.coherent, coherent_of(t, gpu));
    if (ls_is_false(gpu->facts.coherent) && ls_is_false(gpu->facts.c2c_link))
        ls_quantity_fill(&gpu->facts.hbm_is_numa, gpu->facts.c2c_link);
}
