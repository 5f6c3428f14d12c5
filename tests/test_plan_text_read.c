/*
 * test_plan_text_read.c - plans written by hand: read, laid out as one likes, and refused by line.
 */
#include "plan_text_test.h"

/* ---- a plan by hand ------------------------------------------------------------------------ */

static const char tiny[] =
    "longspan-plan 1\n"
    "counts arenas=1 tensors=3 groups=3 carries=1 steps=3 waits=3\n"
    "arena 0 place=host bytes=1024\n"
    "tensor embed dims=8x4 dtype=F32 role=weights layer=- param=0 persistent arena=0 offset=0 "
    "bytes=128 group=0\n"
    "tensor tokens dims=5 dtype=I32 role=batch layer=- param=- arena=0 offset=256 bytes=20 "
    "group=1\n"
    "tensor x dims=5x4 dtype=F32 role=x layer=0 param=- arena=0 offset=512 bytes=80 group=2\n"
    "carry ~0 lane=compute group=1 ends step=1 step+save=- eval=- drain=-\n"
    "segment step first=0 steps=3\n"
    "segment step+save first=0 steps=0\n"
    "segment eval first=0 steps=0\n"
    "segment drain first=0 steps=0\n"
    "step 0 batch disk_in batch layer=- chunk=0 flops=0 bytes=20 w:tokens+0:20 waits=~0\n"
    "step 1 embedding_forward compute forward layer=- chunk=- flops=0 bytes=228 y=w:x+0:80 "
    "w=r:embed+0:128 tokens=r:tokens+0:20 N=5 D=4 V=8 dtype=F32 waits=0\n"
    "step 2 adamw host update layer=- chunk=- commit flops=0x1p-1 bytes=256 w=rw:embed+0:128 "
    "lo=- m=- v=- m_scale=- v_scale=- g=- control=- n=32 stream=0 beta1=0x1.ccccccp-1 beta2=0 "
    "eps=0x1.5798eep-27 weight_decay=0 lr_scale=1 moments=0 dtype=F32 g_dtype=F32 waits=1\n"
    "end\n";

static void tiny_plan_reads(void **state)
{
    ls_plan plan;

    (void)state;
    read_plan(tiny, strlen(tiny), &plan);
    assert_int_equal(plan.n_operands, 12);
    assert_int_equal(plan.steps[1].op, LS_OP_embedding_forward);
    assert_int_equal(plan.operands[2].span.offset, 0);
    assert_int_equal(plan.operands[3].span.offset, 256);
    assert_true(plan.steps[2].flops == 0.5);
    assert_true(plan.args[2].adamw.beta1 == 0.9f && plan.args[2].adamw.eps == 1e-8f);
    assert_int_equal(plan.waits[plan.steps[0].first_wait], ls_wait_carry(0));
    ls_plan_free(&plan);
}

/* A micro-batch comes from disk, goes to device memory on the lane between devices, and is read. */
static const char with_comm[] =
    "longspan-plan 1\n"
    "counts arenas=2 tensors=3 groups=3 carries=2 steps=3 waits=4\n"
    "arena 0 place=host bytes=1024\n"
    "arena 1 place=hbm bytes=1024\n"
    "tensor tokens dims=5 dtype=I32 role=batch layer=- param=- arena=0 offset=0 bytes=20 group=0\n"
    "tensor here dims=5 dtype=I32 role=batch layer=- param=- arena=1 offset=0 bytes=20 group=1\n"
    "tensor x dims=5 dtype=I32 role=x layer=0 param=- arena=1 offset=512 bytes=20 group=2\n"
    "carry ~0 lane=comm group=0 ends step=1 step+save=- eval=- drain=-\n"
    "carry ~1 lane=compute group=1 ends step=2 step+save=- eval=- drain=-\n"
    "segment step first=0 steps=3\n"
    "segment step+save first=0 steps=0\n"
    "segment eval first=0 steps=0\n"
    "segment drain first=0 steps=0\n"
    "step 0 batch disk_in batch layer=- chunk=0 flops=0 bytes=20 w:tokens+0:20 waits=~0\n"
    "step 1 copy comm batch layer=- chunk=0 flops=0 bytes=40 w:here+0:20 r:tokens+0:20 "
    "waits=0,~1\n"
    "step 2 copy compute forward layer=0 chunk=- flops=0 bytes=40 w:x+0:20 r:here+0:20 waits=1\n"
    "end\n";

/* Read, checked, written the same; and a wait for the lane that is left out is missed. */
static void comm_is_a_lane(void **state)
{
    ls_plan plan, again;
    size_t n_bytes;

    (void)state;
    read_plan(with_comm, strlen(with_comm), &plan);
    assert_int_equal(plan.steps[1].lane, LS_LANE_COMM);
    assert_int_equal(plan.carries[0].lane, LS_LANE_COMM);
    assert_int_equal(ls_plan_lanes(&plan), LS_LANE_COUNT);
    assert_int_equal(ls_plan_check(&plan, NULL), LS_OK);
    char *text = write_plan(&plan, &n_bytes);
    assert_non_null(strstr(text, "copy               comm     batch"));
    read_plan(text, n_bytes, &again);
    assert_true(same_plan(&plan, &again));
    free(text);
    ls_plan_free(&again);
    plan.steps[2].n_waits = 0;
    assert_int_equal(ls_plan_check(&plan, NULL), LS_ERR_INVALID);
    assert_non_null(strstr(ls_error(), "lane comm"));
    ls_plan_free(&plan);
    read_plan(tiny, strlen(tiny), &plan);
    assert_int_equal(ls_plan_lanes(&plan), LS_LANE_COMM);
    ls_plan_free(&plan);
}

/* Spaces, empty lines and a missing last newline are no matter. */
static void layout_is_free(void **state)
{
    char text[2 * sizeof tiny], *to = text;
    ls_plan plan, spaced;

    (void)state;
    for (const char *at = tiny; *at != '\0'; at++) {
        if (*at == ' ' || *at == '\n') *to++ = *at;
        *to++ = *at;
    }
    read_plan(tiny, strlen(tiny) - 1, &plan);
    read_plan(text, (size_t)(to - text), &spaced);
    assert_true(same_plan(&plan, &spaced));
    ls_plan_free(&plan);
    ls_plan_free(&spaced);
}

/* ---- what is refused ----------------------------------------------------------------------- */

static void assert_refused(const char *text, size_t bytes, int line, const char *says)
{
    char place[32];
    ls_plan plan;

    snprintf(place, sizeof place, "name:%d: ", line);
    if (ls_plan_read_text("name", text, bytes, &plan) == LS_OK)
        fail_msg("accepted; wanted %s", says);
    if (strncmp(ls_error(), place, strlen(place)) != 0 || strstr(ls_error(), says) == NULL)
        fail_msg("'%s' is not '%s... %s'", ls_error(), place, says);
}

/* One replacement in the tiny plan, the line it is on, and what the message must hold. */
static const struct {
    const char *from, *to;
    int line;
    const char *says;
} malformed[] = {
    {"longspan-plan", "plan", 1, "not a plan"},
    {"plan 1", "plan 2", 1, "'2', where version 1"},
    {"plan 1", "plan 1 x", 1, "'x', where the end of the line"},
    {"counts ", "count ", 2, "'count', where 'counts'"},
    {"arenas=1", "arenas=", 2, "'arenas=', where arenas=..."},
    {"arenas=1", "arenas", 2, "'arenas', where arenas=..."},
    {"arenas=1", "arenas=-1", 2, "'-1' is not a whole number from 0"},
    {"groups=3", "groups=2147483648", 2, "groups: '2147483648' is not a whole number"},
    {"waits=3", "waits=3 more=1", 2, "'more=1'"},
    {"carries=1", "carries=2", 15, "2 carries were announced, 1 came"},
    {"tensors=3", "tensors=4", 15, "4 tensors were announced, 3 came"},
    {"tensors=3", "tensors=2", 6, "one tensor more than the 2"},
    {"steps=3 waits", "steps=2 waits", 8, "'3' is not a whole number from 0 to 2"},
    {"steps=3 waits", "steps=9000000000000000000 waits", 15, "steps were announced, 3 came"},
    {"waits=3", "waits=2", 15, "2 waits were announced, 3 came"},
    {"arena 0", "arena 1", 3, "'1', where 0"},
    {"place=host", "place=disk", 3, "'disk' is no place; known: hbm, host, nvme"},
    {"bytes=1024", "bytes=1024k", 3, "bytes: '1024k'"},
    {"bytes=1024", "bytes=01024", 3, "bytes: '01024'"},
    {"bytes=1024", "bytes=9223372036854775808", 3, "bytes: '9223372036854775808'"},
    {"bytes=1024", "bytes=18446744073709552640", 3,
     "bytes: '18446744073709552640'"}, /* 2^64 + 1024 */
    {"bytes=1024\n", "bytes=1024\r\n", 3, "bytes: '1024?'"},
    {"tensor embed", "tensors embed", 4, "'tensors', where arena, tensor"},
    {"tensor tokens", "tensor embed", 5, "a second tensor embed"},
    {"tensor tokens", "tensor tok\ten", 5, "a name of ASCII"},
    {"dims=8x4", "dims=8x", 4, "1 to 3 sizes"},
    {"dims=8x4", "dims=8x0", 4, "1 to 3 sizes"},
    {"dims=8x4", "dims=2x2x2x2", 4, "1 to 3 sizes"},
    {"dims=8x4", "dims=8x5", 4, "do not hold"},
    {"dims=8x4", "dims=4294967296x4294967296x4", 4, "do not hold"},
    {"dtype=I32", "dtype=I33", 5, "'I33' is no dtype; known: F32"},
    {"role=batch", "role=batches", 5, "'batches' is no role; known: weights"},
    {"layer=- param=0", "layer=-1 param=0", 4, "layer: '-1'"},
    {"persistent", "permanent", 4, "'permanent', where arena=..."},
    {"arena=0 offset=256", "arena=1 offset=256", 5, "arena: '1' is not a whole number from 0 to 0"},
    {"offset=256", "offset=9223372036854775807", 5, "do not hold"},
    {"group=0", "group=3", 4, "group: '3' is not a whole number from 0 to 2"},
    {"carry ~0", "carry 0", 7, "'0', where ~0"},
    {"lane=compute", "lane=computer", 7, "'computer' is no lane"},
    {"ends step=1", "step=1", 7, "'step=1', where 'ends'"},
    {"ends step=1", "ends step=3", 7, "step: '3' is not a whole number from 0 to 2"},
    {"step+save=-", "eval=-", 7, "'eval=-', where step+save=..."},
    {"segment eval", "segment evil", 10, "'evil' is no segment"},
    {"segment eval", "segment step", 10, "segment step a second time"},
    {"segment eval first=0 steps=0\n", "", 14, "segment eval is missing"},
    {"first=0 steps=3", "first=1 steps=3", 8, "steps: '3'"},
    {"step 1", "step 2", 13, "'2', where 1"},
    {"step 2 adamw", "step 2 adam", 14, "'adam' is no op or host call; known: zero, "},
    {"0 batch disk_in", "0 op disk_in", 12, "'op' is no op or host call"},
    {"batch disk_in", "batch disk", 12, "'disk' is no lane"},
    {"compute forward", "compute sideways", 13, "'sideways' is no phase"},
    {"flops=0x1p-1", "flops=0.5", 14, "flops: '0.5' is neither"},
    {"flops=0x1p-1", "flops=nan", 14, "flops: 'nan' is neither"},
    {"commit flops", "comit flops", 14, "'comit', where flops=..."},
    {"w:tokens+0", "x:tokens+0", 12, "'x' is no access"},
    {"w:tokens+0:20", "w:tokens", 12, "where an operand like"},
    {"w:tokens+0:20", "w:tokens+0", 12, "where an operand like"},
    {"w:tokens+0:20", "w:tokens+-1:20", 12, "where an operand like"},
    {"w:tokens+0", "w:token+0", 12, "no tensor 'token'"},
    {"w:tokens+0:20", "w:tokens+4:20", 12, "ends beyond its tensor, which has 20 bytes"},
    {"w:tokens+0:20", "w:tokens+9223372036854775807:20", 12, "ends beyond its tensor"},
    {"y=w:x", "x=w:x", 13, "'x=w:x+0:80', where y=..."},
    {"m=- v=-", "m=-", 14, "'m_scale=-', where v=..."},
    {"N=5", "N=5.0", 13, "N: '5.0'"},
    {"N=5 D=4", "D=4 N=5", 13, "'D=4', where N=..."},
    {"dtype=F32 waits=0", "dtype=0 waits=0", 13, "'0' is no dtype"},
    {"beta2=0 ", "beta2=0x1.999999999999ap-4 ", 14, "beta2: not a float"},
    {"beta2=0 ", "beta2=9223372036854775807 ", 14, "beta2: '9223372036854775807'"},
    {"F32 waits=0", "F32 waits=1", 13, "waits: '1' is neither an earlier step nor a carry"},
    {"waits=~0", "waits=~1", 12, "waits: '~1' is neither"},
    {"waits=~0", "waits=~0,", 12, "waits: '' is neither"},
    {"waits=~0", "waits=~0 0", 12, "'0', where the end of the line"},
    {"F32 waits=1\n", "F32 wait=1\n", 14, "'wait=1', where waits=..."},
    {"\nend\n", "\n", 14, "cut off"},
    {"\nend\n", "\nend\nend\n", 16, "a line behind end"},
    {"\nend\n", "\nend now\n", 15, "'now'"},
    {"\nend\n", "\narena 1 place=host bytes=1\nend\n", 15, "in this order"},
};

static void malformed_lines_are_refused(void **state)
{
    char text[2 * sizeof tiny];

    (void)state;
    for (int64_t i = 0; i < COUNT_OF(malformed); i++) {
        const char *at = strstr(tiny, malformed[i].from);
        if (at == NULL) fail_msg("no '%s' in the plan", malformed[i].from);
        const int n = snprintf(text, sizeof text, "%.*s%s%s", (int)(at - tiny), tiny,
                               malformed[i].to, at + strlen(malformed[i].from));
        assert_refused(text, (size_t)n, malformed[i].line, malformed[i].says);
    }
}

static void cut_and_spoilt_texts_are_refused(void **state)
{
    char text[sizeof tiny];
    ls_plan plan;

    (void)state;
    for (size_t n = 0; n + 1 < strlen(tiny); n++) /* the last newline may be missing */
        if (ls_plan_read_text("cut", tiny, n, &plan) == LS_OK) fail_msg("%zu bytes are enough", n);
    memcpy(text, tiny, sizeof text);
    for (size_t i = 0; i < strlen(tiny); i++) {
        text[i] = '\0';
        if (ls_plan_read_text("spoilt", text, strlen(tiny), &plan) == LS_OK)
            fail_msg("a zero at byte %zu", i);
        text[i] = tiny[i];
    }
}

static void long_names_are_refused(void **state)
{
    char text[2 * sizeof tiny], name[LS_TENSOR_NAME_BYTES + 1];
    const char *at = strstr(tiny, "tokens dims");
    ls_plan plan;

    (void)state;
    memset(name, 'n', sizeof name);
    for (int n = LS_TENSOR_NAME_BYTES - 1; n <= LS_TENSOR_NAME_BYTES; n++) {
        const int bytes = snprintf(text, sizeof text, "%.*s%.*s%s", (int)(at - tiny), tiny, n, name,
                                   at + strlen("tokens"));
        if (n == LS_TENSOR_NAME_BYTES)
            assert_refused(text, (size_t)bytes, 5, "at most 95 bytes");
        else /* the steps do not know the name, but the line is sound */
            assert_refused(text, (size_t)bytes, 12, "no tensor 'tokens'");
    }
    assert_int_equal(ls_plan_read_text("none", NULL, 0, &plan), LS_ERR_CORRUPT);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(tiny_plan_reads),
        cmocka_unit_test(comm_is_a_lane),
        cmocka_unit_test(layout_is_free),
        cmocka_unit_test(malformed_lines_are_refused),
        cmocka_unit_test(cut_and_spoilt_texts_are_refused),
        cmocka_unit_test(long_names_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
