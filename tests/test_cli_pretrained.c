/*
 * test_cli_pretrained.c - a Hugging Face folder through the program: trained from, evaluated,
 * converted both ways; what came with it comes along.
 */
#define _DEFAULT_SOURCE /* NOLINT: the libc's name; for wait4() */
#include "cli_test.h"

#include <cjson/cJSON.h>
#include <dirent.h>
#include <sys/resource.h>
#include <sys/stat.h>

#include "json.h"
#include "rng.h"
#include "safetensors_set.h"

static const char config_json[] =
    "{\"architectures\": [\"Qwen3ForCausalLM\"], \"model_type\": \"qwen3\", \"vocab_size\": 263,\n"
    " \"hidden_size\": 40, \"intermediate_size\": 56, \"num_hidden_layers\": 2,\n"
    " \"num_attention_heads\": 3, \"num_key_value_heads\": 1, \"head_dim\": 10,\n"
    " \"max_position_embeddings\": 256, \"rope_scaling\": {\"rope_type\": \"yarn\", \"factor\": "
    "4.0,\n"
    " \"original_max_position_embeddings\": 64}, \"tie_word_embeddings\": true,\n"
    " \"_name_or_path\": \"made/up\"}\n";

static const char *const companions[][2] = {
    {"tokenizer.json", "{\"model\": {\"vocab\": {}}}"},
    {"tokenizer_config.json", "{\"tokenizer_class\": \"PreTrainedTokenizerFast\"}"},
    {"generation_config.json", "{\"do_sample\": true, \"temperature\": 0.6}"},
    {"chat_template.jinja", "{{ messages }}\n"},
};

enum { N_COMPANIONS = sizeof companions / sizeof companions[0] };

/* ---- the folder ---------------------------------------------------------------------------- */

typedef struct shape {
    const char *name;
    int64_t rows, columns; /* columns 0: a vector */
} shape;

static const shape outer[] = {{"model.embed_tokens.weight", 263, 40}, {"model.norm.weight", 40, 0}};
static const shape of_a_layer[] = {{"self_attn.q_proj", 30, 40},       {"self_attn.k_proj", 10, 40},
                                   {"self_attn.v_proj", 10, 40},       {"self_attn.o_proj", 40, 30},
                                   {"self_attn.q_norm", 10, 0},        {"self_attn.k_norm", 10, 0},
                                   {"mlp.gate_proj", 56, 40},          {"mlp.up_proj", 56, 40},
                                   {"mlp.down_proj", 40, 56},          {"input_layernorm", 40, 0},
                                   {"post_attention_layernorm", 40, 0}};

enum { N_OUTER = 2, N_LAYER = 11, N_TENSORS = N_OUTER + 2 * N_LAYER };

static void list_tensors(ls_dtype dtype, ls_safetensors_tensor *list, char (*names)[96])
{
    for (int i = 0; i < N_TENSORS; i++) {
        const int of_layer = (i - N_OUTER) % N_LAYER;
        const shape *s = i < N_OUTER ? &outer[i] : &of_a_layer[of_layer];
        if (i < N_OUTER)
            snprintf(names[i], 96, "%s", s->name);
        else
            snprintf(names[i], 96, "model.layers.%d.%s.weight", (i - N_OUTER) / N_LAYER, s->name);
        list[i] = (ls_safetensors_tensor){.name = names[i],
                                          .dtype = dtype,
                                          .n_dims = s->columns > 0 ? 2 : 1,
                                          .dims = {s->rows, s->columns}};
    }
}

/* Random values, norms near 1; every tensor of F32 uses all its bits. */
static void fill_tensor(const ls_safetensors_tensor *t, int index, void *data)
{
    const int64_t n = t->dims[0] * (t->n_dims == 2 ? t->dims[1] : 1);

    for (int64_t e = 0; e < n; e++) {
        const double noise = 0.05 * ls_rng_normal(5, (uint64_t)index, (uint64_t)e);
        const float value = (float)(t->n_dims == 1 ? 1.0 + noise : noise);
        uint32_t bits;
        memcpy(&bits, &value, sizeof bits);
        const uint16_t high = (uint16_t)(bits >> 16);
        if (t->dtype == LS_DTYPE_F32)
            ((float *)data)[e] = value;
        else
            ((uint16_t *)data)[e] = t->dtype == LS_DTYPE_BF16 ? high : (uint16_t)(bits & 0x3fffu);
    }
}

/* A folder with weights of a dtype in shards, its companions, and a file that nobody needs. */
static void put_model(const char *folder, ls_dtype dtype)
{
    const ls_safetensors_set_options options = {
        .directory = at("%s", folder), .base = "model", .shard_bytes_max = 20000};
    ls_safetensors_tensor list[N_TENSORS];
    char names[N_TENSORS][96];
    ls_safetensors_set_writer *writer = NULL;
    void *data = malloc(4 * 263 * 40);

    assert_non_null(data);
    assert_ok(ls_directory_make(options.directory));
    list_tensors(dtype, list, names);
    assert_ok(ls_safetensors_set_writer_open(&options, list, N_TENSORS, &writer));
    for (int i = 0; i < N_TENSORS; i++) {
        fill_tensor(&list[i], i, data);
        assert_ok(ls_safetensors_set_writer_append(writer, data));
    }
    assert_ok(ls_safetensors_set_writer_finish(writer));
    ls_safetensors_set_writer_close(writer);
    free(data);
    put_text(at("%s/config.json", folder), config_json);
    for (int i = 0; i < N_COMPANIONS; i++)
        put_text(at("%s/%s", folder, companions[i][0]), companions[i][1]);
    put_text(at("%s/README.md", folder), "# a model card\n");
}

/* Every tensor is in both sets with the same dtype, shape and bytes. */
static void assert_same_tensors(const char *folder, const char *other)
{
    ls_safetensors_set *a = NULL, *b = NULL;

    assert_ok(ls_safetensors_set_open(folder, "model", &a));
    assert_ok(ls_safetensors_set_open(other, "model", &b));
    assert_int_equal(ls_safetensors_set_count(a), N_TENSORS);
    assert_int_equal(ls_safetensors_set_count(b), N_TENSORS);
    for (int64_t i = 0; i < N_TENSORS; i++) {
        const ls_safetensors_entry *x = ls_safetensors_set_get(a, i);
        const ls_safetensors_entry *y = ls_safetensors_set_get(b, i);
        char *data = malloc(x->size_bytes), *data_other = malloc(x->size_bytes);
        assert_string_equal(x->name, y->name);
        assert_int_equal(x->dtype, y->dtype);
        assert_int_equal(x->n_dims, y->n_dims);
        assert_memory_equal(x->dims, y->dims, sizeof x->dims);
        assert_int_equal(x->size_bytes, y->size_bytes);
        assert_ok(ls_safetensors_set_read(a, i, 0, x->size_bytes, data));
        assert_ok(ls_safetensors_set_read(b, i, 0, x->size_bytes, data_other));
        assert_memory_equal(data, data_other, x->size_bytes);
        free(data);
        free(data_other);
    }
    ls_safetensors_set_close(a);
    ls_safetensors_set_close(b);
}

static void assert_companions(const char *folder)
{
    for (int i = 0; i < N_COMPANIONS; i++) {
        char *text = need_bytes(at("%s/%s", folder, companions[i][0]), NULL);
        assert_string_equal(text, companions[i][1]);
        free(text);
    }
    assert_false(is_there(at("%s/README.md", folder)));
}

/* ---- training from it ---------------------------------------------------------------------- */

#define PRETRAINED                                                                                 \
    "--set", "model=hf", "--set", "init=pretrained", "--set", "sequence.tokens=64", "--set",       \
        "optimizer.warmup_steps=0"

static double eval_loss(const char *checkpoint, const char *precision)
{
    char set[64];

    snprintf(set, sizeof set, "precision=%s", precision);
    const outcome *done =
        RUN(0, "eval", "run.yaml", PRETRAINED, "--set", set, "--checkpoint", checkpoint, "--json");
    const char *loss = strstr(done->out, "\"loss\":");
    assert_non_null(loss);
    return strtod(loss + 7, NULL);
}

static void a_run_starts_from_the_weights_and_carries_what_came_with_them(void **state)
{
    (void)state;
    put_model("hf", LS_DTYPE_F32);
    const outcome *done = RUN(0, "train", "run.yaml", PRETRAINED, "--set", "steps=3", "--set",
                              "optimizer.lr=1e-30", "--set", "optimizer.lr_min=0");
    assert_says(done->err, "loaded hf: 24 tensors, 0.03M F32 weights; ");
    assert_says(done->err, "of them exact in their fp32 master; moments start at 0");
    assert_companions("run/checkpoints/step-00000003");
    cJSON *json = NULL;
    assert_ok(ls_json_read(at("run/checkpoints/step-00000003/config.json"), &json));
    assert_string_equal(cJSON_GetObjectItem(json, "model_type")->valuestring, "qwen3");
    const cJSON *rope = cJSON_GetObjectItem(json, "rope_scaling");
    assert_string_equal(cJSON_GetObjectItem(rope, "rope_type")->valuestring, "yarn");
    assert_int_equal(cJSON_GetObjectItem(json, "head_dim")->valuedouble, 10);
    cJSON_Delete(json);

    /* Nothing has moved: the loss is that of the folder, and a checkpoint of it all the same. */
    const double loss = eval_loss("run/checkpoints/step-00000003", "bf16");
    assert_true(loss == eval_loss("hf", "bf16"));
    assert_true(loss != eval_loss("hf", "fp32"));
    char *state_text = need_bytes(at("run/checkpoints/step-00000003/state.json"), NULL);
    assert_says(state_text, "\"tokenizer.json\"");
    free(state_text);
}

/* ---- convert ------------------------------------------------------------------------------- */

static void check_round_trip(ls_dtype dtype)
{
    put_model("from", dtype);
    const outcome *done = RUN(0, "convert", "from", "there/checkpoint", "--json");
    assert_says(done->out, "{\"kind\":\"checkpoint\",\"tensors\":24,\"parameters\":");
    assert_same_tensors(at("from"), at("there/checkpoint"));
    assert_same_file(at("from/config.json"), at("there/checkpoint/config.json"));
    assert_companions("there/checkpoint");
    assert_true(is_there(at("there/checkpoint/state.json")));

    RUN(0, "convert", "there/checkpoint/", "back");
    assert_same_tensors(at("from"), at("back"));
    assert_same_file(at("from/config.json"), at("back/config.json"));
    assert_companions("back");
    assert_false(is_there(at("back/state.json")));
    assert_ok(ls_directory_remove(at("from")));
    assert_ok(ls_directory_remove(at("there")));
    assert_ok(ls_directory_remove(at("back")));
}

static void there_and_back_every_tensor_is_the_same(void **state)
{
    (void)state;
    check_round_trip(LS_DTYPE_BF16);
    check_round_trip(LS_DTYPE_F16);
    check_round_trip(LS_DTYPE_F32);
}

static void a_trained_checkpoint_becomes_a_plain_folder(void **state)
{
    (void)state;
    RUN(0, "convert", "run/checkpoints/step-00000003", "plain");
    assert_same_tensors(at("run/checkpoints/step-00000003"), at("plain"));
    assert_companions("plain");
    assert_false(is_there(at("plain/state.json")));
    assert_false(is_there(at("plain/optimizer-00001-of-00001.safetensors")));
    assert_true(eval_loss("plain", "bf16") == eval_loss("hf", "bf16"));
}

/* A fresh checkpoint is trained from and evaluated like the folder it was made of. */
static void a_fresh_checkpoint_is_a_model_too(void **state)
{
    (void)state;
    RUN(0, "convert", "hf", "fresh");
    assert_true(eval_loss("fresh", "bf16") == eval_loss("hf", "bf16"));
    RUN(0, "train", "run.yaml", PRETRAINED, "--set", "model=fresh", "--set", "steps=1", "--set",
        "output=of-fresh");
    damage(at("fresh/model-00001-of-00001.safetensors"));
    const outcome *done = RUN(1, "train", "run.yaml", PRETRAINED, "--set", "model=fresh", "--set",
                              "steps=1", "--set", "output=of-damaged");
    assert_says(done->err, "model-00001-of-00001.safetensors");
    done = RUN(1, "convert", "fresh", "of-damaged-too");
    assert_says(done->err, "model-00001-of-00001.safetensors");
    assert_false(is_there(at("of-damaged-too")));
}

static void what_cannot_be_converted_leaves_nothing(void **state)
{
    const outcome *done;
    DIR *folder;

    (void)state;
    done = RUN(2, "convert", "hf");
    assert_says(done->err, "want SRC and DST");
    done = RUN(1, "convert", "nowhere", "dst");
    assert_says(done->err, "nowhere");
    done = RUN(2, "convert", "hf", "plain");
    assert_says(done->err, "plain is there already; remove it, or choose another name");
    put_model("odd", LS_DTYPE_BF16);
    put_changed(at("odd/config.json"), config_json, "\"qwen3\"", "\"qwen4\"");
    done = RUN(2, "convert", "odd", "dst");
    assert_says(done->err, "model_type: 'qwen4' is not supported by this version");
    put_changed(at("odd/config.json"), config_json, "\"head_dim\"",
                "\"logit_softcap\": 30, \"head_dim\"");
    done = RUN(2, "convert", "odd", "dst");
    assert_says(done->err, "logit_softcap: unknown key");
    put_changed(at("odd/config.json"), config_json, "\"intermediate_size\": 56",
                "\"intermediate_size\": 64");
    done = RUN(1, "convert", "odd", "dst");
    assert_says(done->err,
                "mlp.gate_proj.weight is 56 x 40, but the model's config.json says 64 x 40");
    folder = opendir(scratch);
    assert_non_null(folder);
    for (const struct dirent *entry; (entry = readdir(folder)) != NULL;)
        if (strncmp(entry->d_name, "dst", 3) == 0 || strncmp(entry->d_name, ".tmp", 4) == 0)
            fail_msg("%s is left behind", entry->d_name);
    closedir(folder);
}

/* ---- memory of a resumed run --------------------------------------------------------------- */

/* Exit code 0 or 75, and the process's own peak in KiB. */
static long peak_kib(pid_t pid, int code)
{
    struct rusage usage;
    int status;

    assert_int_equal(wait4(pid, &status, 0, &usage), pid);
    assert_true(WIFEXITED(status));
    assert_int_equal(WEXITSTATUS(status), code);
    return usage.ru_maxrss;
}

#if defined(LS_SANITIZED)
#define SLACK_KIB 8192 /* what was freed stays mapped for a while */
#else
#define SLACK_KIB 1024
#endif

/* 12 MB of states, 2 MB of the largest: one more copy of them would show. */
static void resuming_takes_no_more_memory_than_training(void **state)
{
#define LARGE                                                                                      \
    "train", "run.yaml", "--quiet", "--set", "model=large.yaml", "--set", "output=large", "--set", \
        "steps=4", "--set", "optimizer.warmup_steps=0", "--set", "eval.every_steps=0"
    (void)state;
    put_changed(at("large.yaml"), model_yaml, "vocab_size: 272", "vocab_size: 16384");
    const long trained = peak_kib(START(LARGE, "--stop-after", "2"), 75);
    const long resumed = peak_kib(START(LARGE, "--resume"), 0);
    if (resumed > trained + SLACK_KIB)
        fail_msg("%ld KiB when resumed, %ld before", resumed, trained);
#undef LARGE
}

/* Globs are on full names; one that matches nothing is refused, by plan and train alike. */
static void groups_must_match_something(void **state)
{
    static const char groups[] = "optimizer.groups=[{match: 'model.layers.0.*', frozen: true}, "
                                 "{match: 'layers.1.*', lr_scale: 0.5}]";
    static const char frozen[] = "optimizer.groups=[{match: 'model.layers.0.*', frozen: true}, "
                                 "{match: 'model.embed_tokens.*', frozen: true}]";
    static const char *const commands[] = {"plan", "train"};

    (void)state;
    for (int c = 0; c < 2; c++) {
        const outcome *done =
            RUN(2, commands[c], "run.yaml", "--set", groups, "--set", "output=groups");
        assert_says(done->err, "optimizer.groups[1].match: 'layers.1.*' matches no tensor of");
    }
    RUN(75, "train", "run.yaml", "--set", frozen, "--set", "output=frozen", "--set", "steps=6",
        "--stop-after", "3");
    RUN(0, "train", "run.yaml", "--set", frozen, "--set", "output=frozen", "--set", "steps=6",
        "--resume");
    RUN(0, "train", "run.yaml", "--set", frozen, "--set", "output=frozen-too", "--set", "steps=6");
    assert_same_run("frozen", "frozen-too", 6);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_run_starts_from_the_weights_and_carries_what_came_with_them),
        cmocka_unit_test(there_and_back_every_tensor_is_the_same),
        cmocka_unit_test(a_trained_checkpoint_becomes_a_plain_folder),
        cmocka_unit_test(a_fresh_checkpoint_is_a_model_too),
        cmocka_unit_test(what_cannot_be_converted_leaves_nothing),
        cmocka_unit_test(groups_must_match_something),
        cmocka_unit_test(resuming_takes_no_more_memory_than_training),
    };
    return cmocka_run_group_tests(tests, make_scratch, remove_scratch);
}
