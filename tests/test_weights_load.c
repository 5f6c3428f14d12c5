/*
 * test_weights_load.c - weights of a Hugging Face folder: every value is the file's, whatever its
 * dtype, the shards and the number of reads; and whatever is wrong with a folder is refused with a
 * message that names it.
 */
#define _DEFAULT_SOURCE /* NOLINT: the libc's name; for symlink() */
#include "weights_test.h"

#include <math.h>

/* An independent reading of the three dtypes. */
static double value_of(const tensors *t, int64_t tensor, int64_t element)
{
    uint32_t bits = 0;
    const uint64_t size = ls_dtype_bytes(t->list[tensor].dtype);

    memcpy(&bits, t->data[tensor] + (uint64_t)element * size, size);
    if (t->list[tensor].dtype == LS_DTYPE_BF16) bits <<= 16;
    if (t->list[tensor].dtype != LS_DTYPE_F16) return (double)ls_f32_from_bits(bits);
    const int exponent = (int)(bits >> 10 & 31u);
    const double fraction = (double)(bits & 1023u);
    const double size_of_it =
        exponent > 0 ? ldexp(1024.0 + fraction, exponent - 25) : ldexp(fraction, -24);
    return bits & 0x8000u ? -size_of_it : size_of_it;
}

static void assert_loaded(const ls_instance *instance, const tensors *t)
{
    const bool exact =
        instance->decoder.options.train || instance->decoder.options.dtype == LS_DTYPE_F32;

    for (int64_t i = 0; i < t->n; i++) {
        const int32_t param = ls_instance_find_param(instance, t->list[i].name);
        if (param < 0) continue; /* derived */
        for (int64_t e = 0; e < count_elements(&t->list[i]); e++) {
            const double wanted = value_of(t, i, e),
                         got = (double)ls_weights_master(instance, param, e);
            if (exact ? got != wanted : fabs(got - wanted) > 0x1p-8 * fabs(wanted))
                fail_msg("%s[%lld] is %a, not %a", t->list[i].name, (long long)e, got, wanted);
        }
    }
}

/* ---- what loads ---------------------------------------------------------------------------- */

static void check_dtypes(ls_dtype file, ls_dtype dtype, bool train, const char *says)
{
    const ls_decoder_options options = tiny_options(dtype, train);
    char text[LS_WEIGHTS_TEXT_BYTES];
    ls_weights_report report;
    ls_instance instance;
    tensors t;

    open_tiny(&options, &instance);
    make_tensors(&instance.decoder, file, &t);
    put_single(at("hf"), &t);
    assert_ok(ls_weights_load(&instance, at("hf"), &report));
    assert_loaded(&instance, &t);
    assert_int_equal(report.n_tensors, instance.decoder.n_params);
    assert_int_equal(report.n_elements[file], ls_decoder_params(&options.shape));
    ls_weights_describe(&instance, &report, text);
    if (strstr(text, says) == NULL) fail_msg("'%s' lacks '%s'", text, says);
    free_tensors(&t);
    ls_instance_close(&instance);
}

static void every_dtype_loads_exactly_and_rounding_is_told(void **state)
{
    (void)state;
    check_dtypes(LS_DTYPE_BF16, LS_DTYPE_BF16, true, "BF16 weights; masters are exactly these");
    check_dtypes(LS_DTYPE_BF16, LS_DTYPE_BF16, true, "moments start at 0");
    check_dtypes(LS_DTYPE_F32, LS_DTYPE_BF16, true, "of them exact in their fp32 master; moments");
    check_dtypes(LS_DTYPE_F16, LS_DTYPE_BF16, true, "of them exact in their fp32 master; moments");
    check_dtypes(LS_DTYPE_BF16, LS_DTYPE_BF16, false, "BF16 weights");
    check_dtypes(LS_DTYPE_F32, LS_DTYPE_BF16, false, "rounded to bf16");
    check_dtypes(LS_DTYPE_F16, LS_DTYPE_BF16, false, "rounded to bf16");
    check_dtypes(LS_DTYPE_F32, LS_DTYPE_F32, true, "F32 weights; masters are exactly these");
    check_dtypes(LS_DTYPE_F16, LS_DTYPE_F32, true, "F16 weights; masters are exactly these");
    check_dtypes(LS_DTYPE_BF16, LS_DTYPE_F32, true, "BF16 weights; masters are exactly these");
}

/* Shards behind links, as Hugging Face's cache keeps them. */
static void link_shards(const char *folder)
{
    ls_name_list list;

    assert_ok(ls_directory_remove(at("linked")));
    assert_ok(ls_directory_make(at("linked")));
    assert_ok(ls_directory_list(folder, &list));
    for (int64_t i = 0; i < list.n_names; i++) {
        char to[600], from[600];
        snprintf(to, sizeof to, "../shards/%s", list.names[i]);
        snprintf(from, sizeof from, "%s/%s", at("linked"), list.names[i]);
        assert_int_equal(symlink(to, from), 0);
    }
    ls_name_list_free(&list);
}

static void shards_and_links_load_as_one_file(void **state)
{
    const ls_decoder_options options = tiny_options(LS_DTYPE_BF16, true);
    ls_instance instance;
    tensors t;

    (void)state;
    open_tiny(&options, &instance);
    make_tensors(&instance.decoder, LS_DTYPE_BF16, &t);
    put_shards(at("shards"), &t, 300);
    assert_ok(ls_weights_load(&instance, at("shards"), NULL));
    assert_loaded(&instance, &t);
    link_shards(at("shards"));
    for (int32_t i = 0; i < instance.decoder.n_params; i++) ls_weights_store(&instance, i, 0, 9.0f);
    assert_ok(ls_weights_load(&instance, at("linked"), NULL));
    assert_loaded(&instance, &t);

    assert_int_equal(unlink(at("shards/model-00002-of-00014.safetensors")), 0);
    assert_fails(ls_weights_load(&instance, at("linked"), NULL), LS_ERR_IO,
                 "model-00002-of-00014.safetensors");
    assert_int_equal(unlink(at("linked/model-00002-of-00014.safetensors")), 0);
    assert_int_equal(
        symlink("model-00002-of-00014.safetensors", at("linked/model-00002-of-00014.safetensors")),
        0);
    assert_fails(ls_weights_load(&instance, at("linked"), NULL), LS_ERR_IO, "symbolic links");
    free_tensors(&t);
    ls_instance_close(&instance);
}

/* More than one read of a tensor, and of two bad values always the first. */
static void large_tensors_are_read_in_pieces(void **state)
{
    ls_decoder_options options = tiny_options(LS_DTYPE_BF16, true);
    ls_instance instance;
    tensors t;

    (void)state;
    options.shape.V = 140001; /* x 8: three pieces, the last odd */
    open_tiny(&options, &instance);
    for (ls_dtype file = LS_DTYPE_F32; file <= LS_DTYPE_F16; file += LS_DTYPE_F16) {
        make_tensors(&instance.decoder, file, &t);
        put_single(at("hf"), &t);
        assert_ok(ls_weights_load(&instance, at("hf"), NULL));
        assert_loaded(&instance, &t);
        free_tensors(&t);
    }
    make_tensors(&instance.decoder, LS_DTYPE_BF16, &t);
    const int64_t embedding = find_tensor(&t, "model.embed_tokens.weight");
    ((uint16_t *)(void *)t.data[embedding])[1000000] = 0x7fc0u;
    ((uint16_t *)(void *)t.data[embedding])[600000] = 0xff80u;
    ((uint16_t *)(void *)t.data[find_tensor(&t, "lm_head.weight")])[5] = 0x7fc0u;
    put_single(at("hf"), &t);
    for (int i = 0; i < 20; i++)
        assert_fails(ls_weights_load(&instance, at("hf"), NULL), LS_ERR_CORRUPT,
                     "model.safetensors: model.embed_tokens.weight: element 600000 is -inf");
    free_tensors(&t);
    ls_instance_close(&instance);
}

static void derived_tensors_are_passed_over(void **state)
{
    ls_decoder_options options = tiny_options(LS_DTYPE_BF16, true);
    char text[LS_WEIGHTS_TEXT_BYTES];
    ls_weights_report report;
    ls_instance instance;
    tensors t;

    (void)state;
    options.shape.tied = true;
    open_tiny(&options, &instance);
    make_tensors(&instance.decoder, LS_DTYPE_BF16, &t);
    add_tensor(&t, "lm_head.weight", LS_DTYPE_BF16, (const int64_t[]){23, 8}, 2);
    const int64_t head = t.n - 1, embedding = find_tensor(&t, "model.embed_tokens.weight");
    put_single(at("hf"), &t);
    assert_fails(
        ls_weights_load(&instance, at("hf"), NULL), LS_ERR_CORRUPT,
        "lm_head.weight differs from model.embed_tokens.weight, but config.json ties them");
    memcpy(t.data[head], t.data[embedding], t.bytes[head]);
    add_tensor(&t, "model.layers.0.self_attn.rotary_emb.inv_freq", LS_DTYPE_BF16,
               (const int64_t[]){3}, 1);
    put_single(at("hf"), &t);
    assert_ok(ls_weights_load(&instance, at("hf"), &report));
    assert_loaded(&instance, &t);
    assert_int_equal(report.n_derived, 2);
    assert_non_null(strstr(ls_weights_describe(&instance, &report, text), "2 derived ones"));
    free_tensors(&t);
    ls_instance_close(&instance);
}

/* ---- what does not ------------------------------------------------------------------------- */

#define UP "model.layers.1.mlp.up_proj.weight"

static void drop_up(tensors *t)
{
    remove_tensor(t, find_tensor(t, UP));
}
static void rename_up(tensors *t)
{
    snprintf(t->names[find_tensor(t, UP)], sizeof t->names[0], "model.layers.1.mlp.up.weight");
}
static void add_a_layer(tensors *t)
{
    add_tensor(t, "model.layers.2.mlp.up_proj.weight", LS_DTYPE_F32, (const int64_t[]){12, 8}, 2);
}
static void add_a_bias(tensors *t)
{
    add_tensor(t, "model.layers.0.self_attn.q_proj.bias", LS_DTYPE_F32, (const int64_t[]){18}, 1);
}
static void transpose_up(tensors *t)
{
    ls_safetensors_tensor *up = &t->list[find_tensor(t, UP)];
    up->dims[0] = 8;
    up->dims[1] = 12;
}
static void flatten_up(tensors *t)
{
    ls_safetensors_tensor *up = &t->list[find_tensor(t, UP)];
    up->n_dims = 1;
    up->dims[0] = 96;
}
static void put_bits(tensors *t, uint32_t bits)
{
    memcpy(t->data[find_tensor(t, UP)] + 4 * 95, &bits, 4);
}
static void put_nan(tensors *t)
{
    put_bits(t, 0x7fc00000u);
}
static void put_infinity(tensors *t)
{
    put_bits(t, 0xff800000u);
}
static void put_too_large(tensors *t)
{
    put_bits(t, 0x7f7fffffu);
}
static void make_integers(tensors *t)
{
    t->list[find_tensor(t, UP)].dtype = LS_DTYPE_I32;
}

static void damaged_weights_are_refused_by_name(void **state)
{
    static const struct {
        void (*damage)(tensors *t);
        ls_status status;
        const char *says;
    } cases[] = {
        {drop_up, LS_ERR_CORRUPT, "tensor " UP " is missing; the files hold 20 tensors"},
        {rename_up, LS_ERR_CORRUPT, "tensor " UP " is missing"},
        {add_a_layer, LS_ERR_CORRUPT, "model.layers.2.mlp.up_proj.weight is not part of the model"},
        {add_a_bias, LS_ERR_CORRUPT, "self_attn.q_proj.bias is not part of the model"},
        {transpose_up, LS_ERR_CORRUPT, UP " is 8 x 12, but the model's config.json says 12 x 8"},
        {flatten_up, LS_ERR_CORRUPT, UP " is 96, but"},
        {put_nan, LS_ERR_CORRUPT, UP ": element 95 is nan, which is no finite bf16 weight"},
        {put_infinity, LS_ERR_CORRUPT, UP ": element 95 is -inf"},
        {put_too_large, LS_ERR_CORRUPT, UP ": element 95 is 3.40282e+38"},
        {make_integers, LS_ERR_UNSUPPORTED, UP " is I32; weights are F32, BF16 or F16"},
    };
    const ls_decoder_options options = tiny_options(LS_DTYPE_BF16, true);
    ls_instance instance;

    (void)state;
    open_tiny(&options, &instance);
    for (size_t c = 0; c < sizeof cases / sizeof cases[0]; c++) {
        tensors t;
        make_tensors(&instance.decoder, LS_DTYPE_F32, &t);
        cases[c].damage(&t);
        put_single(at("hf"), &t);
        assert_fails(ls_weights_load(&instance, at("hf"), NULL), cases[c].status, cases[c].says);
        put_shards(at("hf"), &t, 400);
        assert_fails(ls_weights_load(&instance, at("hf"), NULL), cases[c].status, cases[c].says);
        free_tensors(&t);
    }
    ls_instance_close(&instance);
}

/* A shard that is damaged, gone, not named, or another's. */
static void damaged_folders_are_refused(void **state)
{
    const ls_decoder_options options = tiny_options(LS_DTYPE_BF16, true);
    ls_instance instance;
    char *index;
    tensors t;

    (void)state;
    open_tiny(&options, &instance);
    make_tensors(&instance.decoder, LS_DTYPE_BF16, &t);
    assert_fails(ls_weights_load(&instance, at("nowhere"), NULL), LS_ERR_IO, "nowhere");
    assert_ok(ls_directory_make(at("hf")));
    put_single(at("hf"), &t);
    assert_ok(ls_disk_file_rename(at("hf/model.safetensors"), at("hf/pytorch_model.bin")));
    assert_fails(ls_weights_load(&instance, at("hf"), NULL), LS_ERR_IO,
                 "holds no model.safetensors and no model-*-of-*.safetensors");

    put_shards(at("hf"), &t, 300);
    assert_int_equal(truncate(at("hf/model-00003-of-00014.safetensors"), 200), 0);
    assert_fails(ls_weights_load(&instance, at("hf"), NULL), LS_ERR_CORRUPT,
                 "model-00003-of-00014.safetensors");
    put_shards(at("hf"), &t, 300);
    assert_ok(ls_disk_file_remove(at("hf/model-00003-of-00014.safetensors")));
    assert_fails(ls_weights_load(&instance, at("hf"), NULL), LS_ERR_IO,
                 "model-00003-of-00014.safetensors");
    assert_ok(ls_disk_file_remove(at("hf/model.safetensors.index.json")));
    assert_fails(ls_weights_load(&instance, at("hf"), NULL), LS_ERR_CORRUPT,
                 "model-00004-of-00014.safetensors does not follow shard 2 of 14");

    put_shards(at("hf"), &t, 300); /* an index that forgets a tensor of a shard that it names */
    assert_ok(ls_disk_file_read_all(at("hf/model.safetensors.index.json"), 100000, &index, NULL));
    char *name = strstr(index, "\"model.layers.0.self_attn.k_proj.weight\"");
    assert_non_null(name);
    memset(name, ' ', (size_t)(strchr(name, ',') + 1 - name));
    put_file(at("hf/model.safetensors.index.json"), index, strlen(index));
    free(index);
    assert_fails(ls_weights_load(&instance, at("hf"), NULL), LS_ERR_CORRUPT,
                 "tensor 'model.layers.0.self_attn.k_proj.weight' of");
    free_tensors(&t);
    ls_instance_close(&instance);
}

/* The disk fails under one of the reads, or the file ends earlier than when it was opened. */
static ssize_t fail_reads(int fd, void *data, size_t bytes, off_t offset)
{
    if (offset > 4096) {
        errno = EIO;
        return -1;
    }
    return ls_file_ops_libc()->pread(fd, data, bytes, offset);
}

static ssize_t end_reads(int fd, void *data, size_t bytes, off_t offset)
{
    return offset > 4096 ? 0 : ls_file_ops_libc()->pread(fd, data, bytes, offset);
}

static void failing_reads_are_reported(void **state)
{
    ls_decoder_options options = tiny_options(LS_DTYPE_BF16, true);
    ls_file_ops ops = *ls_file_ops_libc();
    ls_instance instance;
    tensors t;

    (void)state;
    options.shape.V = 2001;
    open_tiny(&options, &instance);
    make_tensors(&instance.decoder, LS_DTYPE_F16, &t);
    put_single(at("hf"), &t);
    ls_file_ops_replace(&ops);
    ops.pread = fail_reads;
    assert_fails(ls_weights_load(&instance, at("hf"), NULL), LS_ERR_IO, "model.safetensors");
    ops.pread = end_reads;
    assert_fails(ls_weights_load(&instance, at("hf"), NULL), LS_ERR_CORRUPT, "model.safetensors");
    ls_file_ops_replace(NULL);
    assert_ok(ls_weights_load(&instance, at("hf"), NULL));
    assert_loaded(&instance, &t);
    free_tensors(&t);
    ls_instance_close(&instance);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_dtype_loads_exactly_and_rounding_is_told),
        cmocka_unit_test(shards_and_links_load_as_one_file),
        cmocka_unit_test(large_tensors_are_read_in_pieces),
        cmocka_unit_test(derived_tensors_are_passed_over),
        cmocka_unit_test(damaged_weights_are_refused_by_name),
        cmocka_unit_test(damaged_folders_are_refused),
        cmocka_unit_test(failing_reads_are_reported),
    };
    return cmocka_run_group_tests(tests, make_test_folder, remove_test_folder);
}
