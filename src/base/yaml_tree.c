/*
 * yaml_tree.c - the tree of a document, built from libyaml's events.
 *
 * Events, not libyaml's own documents: they are checked one by one, so that what is refused is
 * refused at its line and the limits hold while reading, before memory is spent.  The open
 * container is a pointer (parents link upwards), so nesting takes no C stack.
 */
#include "yaml_tree.h"

#include <assert.h>
#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include <yaml.h>

#include "file.h"
#include "text.h"

#define SET_DEPTH_MAX   8
#define SET_MARK        "--set "
#define BYTE_ORDER_MARK "\xef\xbb\xbf"

struct ls_yaml {
    char *name; /* the file, or "--set key.path" */
    bool is_set;
    ls_yaml_node *root; /* NULL once moved into another tree */
    ls_yaml *sets;      /* documents whose nodes were moved into this tree, a chain */
};

typedef struct builder {
    ls_yaml *document;
    ls_yaml_node *open; /* innermost open container */
    char *key;          /* read, its value still to come */
    int key_line;
    size_t n_nodes, depth;
} builder;

static ls_status fail_memory(const ls_yaml *document)
{
    return LS_FAIL(LS_ERR_NO_MEMORY, "%s: out of memory", document->name);
}

static void free_nodes(ls_yaml_node *node)
{
    if (node == NULL) return;
    for (ls_yaml_node *child = node->first; child != NULL;) {
        ls_yaml_node *next = child->next;
        free_nodes(child); /* at most LS_YAML_DEPTH_MAX + SET_DEPTH_MAX deep */
        child = next;
    }
    free(node->text);
    free(node->key);
    free(node);
}

void ls_yaml_free(ls_yaml *document)
{
    while (document != NULL) {
        ls_yaml *next = document->sets;
        free_nodes(document->root);
        free(document->name);
        free(document);
        document = next;
    }
}

const ls_yaml_node *ls_yaml_root(const ls_yaml *document)
{
    return document->root;
}

/* ---- building ----------------------------------------------------------------------------------
 */

/* "FILE:LINE", or the name alone on the command line.  Of a name too long the end is kept. */
static const char *format_place(char *buffer, size_t size, const ls_yaml *document, int line)
{
    const size_t n = strlen(document->name), room = size - 16;
    const char *cut = n > room ? "..." : "";
    const char *name = document->name + (n > room ? n - room : 0);

    if (document->is_set)
        snprintf(buffer, size, "%s", document->name);
    else
        snprintf(buffer, size, "%s%s:%d", cut, name, line);
    return buffer;
}

static ls_status fail_line(const builder *b, size_t line, const char *what)
{
    char place[LS_YAML_PATH_BYTES];
    return LS_FAIL(LS_ERR_INVALID, "%s: %s",
                   format_place(place, sizeof place, b->document, (int)line + 1), what);
}

static void append_child(ls_yaml_node *parent, ls_yaml_node *child)
{
    child->parent = parent;
    child->index = parent->n_children++;
    if (parent->last != NULL)
        parent->last->next = child;
    else
        parent->first = child;
    parent->last = child;
}

/* A node at its place in the tree; the builder's pending key becomes its key. */
static ls_status add_node(builder *b, ls_yaml_kind kind, size_t line, ls_yaml_node **node)
{
    ls_yaml_node *added;

    if (++b->n_nodes > LS_YAML_NODES_MAX) return fail_line(b, line, "too many values in one file");
    if (b->open != NULL && b->open->n_children == LS_YAML_ITEMS_MAX)
        return fail_line(b, line, "too many values in one list or map");
    added = calloc(1, sizeof *added);
    if (added == NULL) return fail_memory(b->document);
    added->kind = kind;
    added->document = b->document;
    added->line = b->document->is_set ? 0 : (b->key != NULL ? b->key_line : (int)line + 1);
    added->key = b->key;
    b->key = NULL;
    if (b->open != NULL)
        append_child(b->open, added);
    else
        b->document->root = added;
    *node = added;
    return LS_OK;
}

static ls_status read_key(builder *b, const char *text, size_t bytes, size_t line)
{
    char quoted[LS_TEXT_BYTES], place[LS_YAML_PATH_BYTES];
    const ls_yaml_node *same = ls_yaml_find(b->open, text);

    if (bytes == 0) return fail_line(b, line, "a key is empty");
    if (bytes > LS_YAML_KEY_BYTES_MAX)
        return LS_FAIL(LS_ERR_INVALID, "%s: key %s is longer than %d bytes",
                       format_place(place, sizeof place, b->document, (int)line + 1),
                       ls_text_quote(quoted, sizeof quoted, text), LS_YAML_KEY_BYTES_MAX);
    if (same != NULL) {
        char path[LS_YAML_PATH_BYTES];
        return LS_FAIL(LS_ERR_INVALID, "%s: %s: given twice, first on line %d; keep one of them",
                       format_place(place, sizeof place, b->document, (int)line + 1),
                       ls_yaml_path(same, path, sizeof path), same->line);
    }
    b->key = strdup(text);
    b->key_line = (int)line + 1;
    return b->key == NULL ? fail_memory(b->document) : LS_OK;
}

static ls_status add_scalar(builder *b, const yaml_event_t *event)
{
    const char *text = (const char *)event->data.scalar.value;
    const size_t bytes = event->data.scalar.length, line = event->start_mark.line;
    ls_yaml_node *node;

    if (event->data.scalar.anchor != NULL)
        return fail_line(b, line, "anchors (&name) are not allowed; write the value out");
    if (event->data.scalar.tag != NULL)
        return fail_line(b, line, "tags (!name) are not allowed; write the value alone");
    if (strlen(text) != bytes) return fail_line(b, line, "a zero byte in a text is not allowed");
    if (b->open != NULL && b->open->kind == LS_YAML_MAP && b->key == NULL)
        return read_key(b, text, bytes, line);
    LS_TRY(add_node(b, LS_YAML_SCALAR, line, &node));
    node->quoted = event->data.scalar.style != YAML_PLAIN_SCALAR_STYLE;
    node->text = strdup(text);
    return node->text == NULL ? fail_memory(b->document) : LS_OK;
}

static ls_status open_container(builder *b, ls_yaml_kind kind, const yaml_char_t *anchor,
                                const yaml_char_t *tag, size_t line)
{
    if (anchor != NULL)
        return fail_line(b, line, "anchors (&name) are not allowed; write the value out");
    if (tag != NULL)
        return fail_line(b, line, "tags (!name) are not allowed; write the value alone");
    if (b->open != NULL && b->open->kind == LS_YAML_MAP && b->key == NULL)
        return fail_line(b, line, "a key must be one word, not a list or a map");
    if (++b->depth > LS_YAML_DEPTH_MAX)
        return fail_line(b, line, "lists and maps are nested too deep");
    return add_node(b, kind, line, &b->open);
}

static ls_status read_event(builder *b, const yaml_event_t *event, bool *end)
{
    const size_t line = event->start_mark.line;

    switch (event->type) {
    case YAML_DOCUMENT_START_EVENT:
        if (b->document->root != NULL) return fail_line(b, line, "a second document begins here");
        return LS_OK;
    case YAML_SCALAR_EVENT: return add_scalar(b, event);
    case YAML_SEQUENCE_START_EVENT:
        return open_container(b, LS_YAML_LIST, event->data.sequence_start.anchor,
                              event->data.sequence_start.tag, line);
    case YAML_MAPPING_START_EVENT:
        return open_container(b, LS_YAML_MAP, event->data.mapping_start.anchor,
                              event->data.mapping_start.tag, line);
    case YAML_SEQUENCE_END_EVENT:
    case YAML_MAPPING_END_EVENT:
        assert(b->open != NULL);
        b->open = b->open->parent;
        b->depth--;
        return LS_OK;
    case YAML_ALIAS_EVENT:
        return fail_line(b, line, "aliases (*name) are not allowed; write the value out");
    case YAML_STREAM_END_EVENT: *end = true; return LS_OK;
    default: return LS_OK;
    }
}

/* What libyaml says, at its line.  Its reader gives an offset in bytes instead. */
static ls_status fail_syntax(const builder *b, const yaml_parser_t *parser, const char *text)
{
    char what[LS_TEXT_BYTES * 2];
    size_t line = parser->problem_mark.line;

    if (parser->error == YAML_MEMORY_ERROR) return fail_memory(b->document);
    if (parser->error == YAML_READER_ERROR) {
        line = 0;
        for (size_t i = 0; i < parser->problem_offset; i++) line += text[i] == '\n';
    }
    snprintf(what, sizeof what, "does not parse: %s%s%s",
             parser->problem != NULL ? parser->problem : "unknown error",
             parser->context != NULL ? ", " : "", parser->context != NULL ? parser->context : "");
    return fail_line(b, line, what);
}

static ls_status build_tree(ls_yaml *document, const char *text, size_t bytes)
{
    builder b = {.document = document};
    yaml_parser_t parser;
    ls_status status = LS_OK;

    if (!yaml_parser_initialize(&parser)) return fail_memory(document);
    if (bytes >= 3 && memcmp(text, BYTE_ORDER_MARK, 3) == 0) { /* counts as a column otherwise */
        text += 3;
        bytes -= 3;
    }
    yaml_parser_set_encoding(&parser, YAML_UTF8_ENCODING);
    yaml_parser_set_input_string(&parser, (const unsigned char *)text, bytes);
    for (bool end = false; status == LS_OK && !end;) {
        yaml_event_t event;
        if (!yaml_parser_parse(&parser, &event)) {
            status = fail_syntax(&b, &parser, text);
            break;
        }
        status = read_event(&b, &event, &end);
        yaml_event_delete(&event);
    }
    if (status == LS_OK && document->root == NULL)
        status = LS_FAIL(LS_ERR_INVALID, "%s: is empty", document->name);
    free(b.key);
    yaml_parser_delete(&parser);
    return status;
}

static ls_status parse_named(const char *name, bool is_set, const char *text, size_t bytes,
                             ls_yaml **document)
{
    ls_yaml *parsed = calloc(1, sizeof *parsed);
    ls_status status;

    if (parsed == NULL) return LS_FAIL(LS_ERR_NO_MEMORY, "%s: out of memory", name);
    parsed->is_set = is_set;
    parsed->name = strdup(name);
    if (parsed->name == NULL)
        status = LS_FAIL(LS_ERR_NO_MEMORY, "%s: out of memory", name);
    else if (bytes > LS_YAML_FILE_BYTES_MAX)
        status = LS_FAIL(LS_ERR_INVALID, "%s: larger than %u bytes", name, LS_YAML_FILE_BYTES_MAX);
    else
        status = build_tree(parsed, text, bytes);
    if (status == LS_OK)
        *document = parsed;
    else
        ls_yaml_free(parsed);
    return status;
}

ls_status ls_yaml_parse(const char *name, const char *text, size_t bytes, ls_yaml **document)
{
    return parse_named(name, false, text, bytes, document);
}

/* What is no file, or not for us, is a wrong name; a disk that fails is not. */
static bool is_wrong_name(const char *path)
{
    struct stat about;

    if (stat(path, &about) != 0) return errno != EIO && errno != ENOMEM;
    return !S_ISREG(about.st_mode) || access(path, R_OK) != 0;
}

ls_status ls_yaml_read(const char *path, ls_yaml **document)
{
    char *text;
    uint64_t bytes;
    ls_status status = ls_file_read(path, LS_YAML_FILE_BYTES_MAX, &text, &bytes);

    if (status == LS_ERR_IO && is_wrong_name(path))
        return LS_FAIL(LS_ERR_INVALID, "%s", ls_error());
    LS_TRY(status);
    status = parse_named(path, false, text, bytes, document);
    free(text);
    return status;
}

/* ---- values from the command line --------------------------------------------------------------
 */

/* A map to hold the rest of a --set path, where the tree has none. */
static ls_yaml_node *create_map(const ls_yaml *document, const char *key)
{
    ls_yaml_node *map = calloc(1, sizeof *map);
    if (map == NULL) return NULL;
    map->kind = LS_YAML_MAP;
    map->document = document;
    map->key = strdup(key);
    if (map->key == NULL) {
        free(map);
        return NULL;
    }
    return map;
}

/* Put node among the members of the map, in place of the one with its key. */
static void replace_member(ls_yaml_node *map, ls_yaml_node *node)
{
    ls_yaml_node **link = &map->first;

    while (*link != NULL && strcmp((*link)->key, node->key) != 0) link = &(*link)->next;
    if (*link == NULL) {
        append_child(map, node);
        return;
    }
    node->parent = map;
    node->index = (*link)->index;
    node->next = (*link)->next;
    if (map->last == *link) map->last = node;
    (*link)->next = NULL;
    free_nodes(*link);
    *link = node;
}

/* Move the root of set to where path (taken apart in place) says in the tree of document. */
static ls_status move_into(ls_yaml *document, ls_yaml *set, char *path)
{
    ls_yaml_node *map = document->root;
    char *rest = path;

    assert(set->root != NULL);
    for (char *dot = strchr(rest, '.'); dot != NULL; dot = strchr(rest, '.')) {
        ls_yaml_node *child;
        *dot = '\0';
        for (child = map->first; child != NULL; child = child->next)
            if (strcmp(child->key, rest) == 0) break;
        if (child == NULL || child->kind != LS_YAML_MAP) {
            child = create_map(set, rest);
            if (child == NULL) return fail_memory(set);
            replace_member(map, child);
        }
        map = child;
        rest = dot + 1;
    }
    set->root->key = strdup(rest);
    if (set->root->key == NULL) return fail_memory(set);
    replace_member(map, set->root);
    set->root = NULL;
    return LS_OK;
}

/* Fail unless path is words joined by dots. */
static ls_status check_set_path(const char *path)
{
    size_t depth = 1, n = 0;

    for (const char *c = path;; c++) {
        if (*c == '.' || *c == '\0') {
            if (n == 0 || n > LS_YAML_KEY_BYTES_MAX) break;
            if (*c == '\0') return LS_OK;
            if (++depth > SET_DEPTH_MAX) break;
            n = 0;
        } else {
            n++;
        }
    }
    return LS_FAIL(LS_ERR_INVALID, "--set: no key path before '='; write --set key.path=value");
}

ls_status ls_yaml_set(ls_yaml *document, const char *assignment)
{
    const char *equals = strchr(assignment, '=');
    const size_t n = equals == NULL ? 0 : (size_t)(equals - assignment);
    char quoted[LS_TEXT_BYTES];
    char *name, *path;
    ls_yaml *set = NULL;
    ls_status status;

    if (equals == NULL)
        return LS_FAIL(LS_ERR_INVALID, "--set %s: write --set key.path=value",
                       ls_text_quote(quoted, sizeof quoted, assignment));
    if (document->root->kind != LS_YAML_MAP)
        return LS_YAML_FAIL(document->root, LS_ERR_INVALID, "not a map of keys and values");
    name = malloc(sizeof SET_MARK + n);
    if (name == NULL) return fail_memory(document);
    memcpy(name, SET_MARK, sizeof SET_MARK - 1);
    path = name + sizeof SET_MARK - 1;
    memcpy(path, assignment, n);
    path[n] = '\0';
    status = check_set_path(path);
    if (status != LS_OK) goto free_name;
    status = parse_named(name, true, equals + 1, strlen(equals + 1), &set);
    if (status != LS_OK) goto free_name;
    assert(set != NULL);
    /* whatever was moved lives as long as the tree */
    set->sets = document->sets;
    document->sets = set;
    status = move_into(document, set, path);
free_name:
    free(name);
    return status;
}

/* ---- looking -----------------------------------------------------------------------------------
 */

const ls_yaml_node *ls_yaml_find(const ls_yaml_node *map, const char *key)
{
    if (map == NULL || map->kind != LS_YAML_MAP) return NULL;
    for (const ls_yaml_node *child = map->first; child != NULL; child = child->next)
        if (strcmp(child->key, key) == 0) return child;
    return NULL;
}

const ls_yaml_node *ls_yaml_find_path(const ls_yaml_node *map, const char *path)
{
    char key[LS_YAML_KEY_BYTES_MAX + 1];

    for (const char *dot = strchr(path, '.'); dot != NULL; dot = strchr(path, '.')) {
        snprintf(key, sizeof key, "%.*s", (int)(dot - path), path);
        map = ls_yaml_find(map, key);
        path = dot + 1;
    }
    return ls_yaml_find(map, path);
}

bool ls_yaml_is_null(const ls_yaml_node *node)
{
    if (node->kind != LS_YAML_SCALAR || node->quoted) return false;
    return node->text[0] == '\0' || strcmp(node->text, "~") == 0 || strcmp(node->text, "null") == 0;
}

bool ls_yaml_is_set(const ls_yaml_node *node)
{
    return node->document->is_set;
}

const char *ls_yaml_path(const ls_yaml_node *node, char *buffer, size_t size)
{
    const ls_yaml_node *chain[LS_YAML_DEPTH_MAX + SET_DEPTH_MAX + 1];
    size_t n = 0, at = 0;

    assert(size > 0);
    buffer[0] = '\0';
    for (; node->parent != NULL; node = node->parent) {
        assert(n < sizeof chain / sizeof chain[0]);
        chain[n++] = node;
    }
    while (n-- > 0 && at + 1 < size) {
        const char *key = chain[n]->key;
        const char *join = at > 0 && key != NULL ? "." : "";
        const int wrote = key != NULL ? snprintf(buffer + at, size - at, "%s%s", join, key)
                                      : snprintf(buffer + at, size - at, "[%zu]", chain[n]->index);
        if (wrote < 0 || (size_t)wrote >= size - at) break;
        at += (size_t)wrote;
    }
    for (char *c = buffer; *c != '\0'; c++)
        if ((unsigned char)*c < 0x20 || *c == 0x7f) *c = '?';
    return buffer;
}

const char *ls_yaml_place(const ls_yaml_node *node, char buffer[LS_YAML_PLACE_BYTES])
{
    char file[LS_YAML_PATH_BYTES], path[LS_YAML_PATH_BYTES];
    const char *name = node->document->name;

    format_place(file, sizeof file, node->document, node->line);
    ls_yaml_path(node, path, sizeof path);
    if (path[0] == '\0' || (ls_yaml_is_set(node) && strcmp(path, name + strlen(SET_MARK)) == 0))
        snprintf(buffer, LS_YAML_PLACE_BYTES, "%s", file);
    else
        snprintf(buffer, LS_YAML_PLACE_BYTES, "%s: %s", file, path);
    return buffer;
}

ls_status ls_yaml_fail_at(const char *file, int line, const ls_yaml_node *node, ls_status status,
                          const char *format, ...)
{
    char place[LS_YAML_PLACE_BYTES], what[1024];
    va_list args;

    va_start(args, format);
    vsnprintf(what, sizeof what, format, args);
    va_end(args);
    return ls_fail_at(file, line, status, "%s: %s", ls_yaml_place(node, place), what);
}
