/* test_json_schema.c - what a schema allows passes, and what it does not is named. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <stdio.h>
#include <string.h>

#include "json.h"
#include "json_schema.h"

static const char schema_text[] =
    "{\"title\":\"t\",\"type\":\"object\",\"required\":[\"n\"],\"additionalProperties\":false,"
    "\"properties\":{\"n\":{\"type\":\"integer\",\"minimum\":1,\"maximum\":9},"
    "\"x\":{\"type\":[\"number\",\"null\"]},"
    "\"w\":{\"enum\":[\"a\",2]},"
    "\"list\":{\"type\":\"array\",\"items\":{\"$ref\":\"#/$defs/pair\"}},"
    "\"any\":{\"anyOf\":[{\"type\":\"string\"},{\"type\":\"null\"}]},"
    "\"map\":{\"type\":\"object\",\"additionalProperties\":{\"type\":\"string\"}}},"
    "\"$defs\":{\"pair\":{\"type\":\"array\",\"items\":{\"type\":\"number\"}}}}";

static ls_status check(const char *schema, const char *document)
{
    cJSON *s = cJSON_Parse(schema), *d = cJSON_Parse(document);

    assert_true(s != NULL && d != NULL);
    const ls_status status = ls_json_schema_check(s, d, "doc");
    cJSON_Delete(s);
    cJSON_Delete(d);
    return status;
}

static void test_what_is_allowed(void **state)
{
    static const char *const documents[] = {
        "{\"n\":1}", "{\"n\":9,\"x\":null,\"w\":2,\"list\":[[1,2.5],[]],\"any\":null}",
        "{\"n\":3,\"x\":1e300,\"w\":\"a\",\"any\":\"s\",\"map\":{\"k\":\"v\"}}"};

    (void)state;
    for (size_t i = 0; i < sizeof documents / sizeof documents[0]; i++)
        if (check(schema_text, documents[i]) != LS_OK) fail_msg("%s", ls_error());
}

static void test_what_is_not(void **state)
{
    static const struct {
        const char *document, *says;
    } cases[] = {
        {"{}", "doc: the document has no 'n'"},
        {"[]", "the document is of type array, not object"},
        {"{\"n\":1.5}", "n is of type number, not integer"},
        {"{\"n\":0}", "n is 0, less than 1"},
        {"{\"n\":10}", "n is 10, more than 9"},
        {"{\"n\":1,\"x\":\"y\"}", "x is of type string, not number or null"},
        {"{\"n\":1,\"w\":3}", "w is none of the values"},
        {"{\"n\":1,\"list\":[[1],[true]]}", "list.1.0 is of type boolean, not number"},
        {"{\"n\":1,\"any\":5}", "any is of type number"},
        {"{\"n\":1,\"map\":{\"k\":5}}", "map.k is of type number, not string"},
        {"{\"n\":1,\"other\":5}", "the document has 'other', which is not known"},
    };

    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        assert_int_equal(check(schema_text, cases[i].document), LS_ERR_CORRUPT);
        if (strstr(ls_error(), cases[i].says) == NULL)
            fail_msg("'%s' lacks '%s'", ls_error(), cases[i].says);
    }
}

/* A schema that says more than is checked is no schema of ours. */
static void test_unknown_keywords(void **state)
{
    (void)state;
    assert_int_equal(check("{\"pattern\":\"x\"}", "\"x\""), LS_ERR_INVALID);
    assert_int_equal(check("{\"$ref\":\"#/$defs/none\"}", "1"), LS_ERR_INVALID);
    assert_int_equal(check("{\"anyOf\":[{\"not\":{}},{\"type\":\"number\"}]}", "1"),
                     LS_ERR_INVALID);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_what_is_allowed),
        cmocka_unit_test(test_what_is_not),
        cmocka_unit_test(test_unknown_keywords),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
