/*
 * blocks.cpp - the blocks of a launch, one after the other, their threads as fibers.
 *
 * A thread runs until it stands at a barrier or has handed a value to its warp.  Which of those
 * that can go on does so is drawn at random.  A warp's values have two places, used in turn: a lane
 * can be one exchange ahead of another, never two.
 */
#include <sys/mman.h>
#include <unistd.h>

#include <cassert>
#include <vector>

#include "cuda_emulation.h"
#include "fiber.h"
#include "internal.h"

ls_emulated_thread ls_emulated_now;

namespace
{

enum {
    WARP = 32,
    THREADS_MAX = 1024,
    STACK_BYTES = 128 * 1024,
    SHARED_BYTES_MAX = 227 * 1024,
    POISON = 0xff /* NaN */
};

enum class state { ready, at_barrier, at_exchange, done };

struct meeting {
    const char *file;
    int line;
};

struct thread {
    ls_fiber fiber;
    state now;
    meeting at;
    int turn; /* which of the warp's two places it uses next */
    uint3 index;
};

struct warp {
    ls_emulated_words values[2][WARP];
    unsigned arrived[2], wanted[2];
    meeting at[2];
};

thread threads[THREADS_MAX];
warp warps[THREADS_MAX / WARP];
ls_fiber host;
unsigned n_threads, current;
unsigned ready[THREADS_MAX], n_ready, n_at_barrier, n_done; /* threads that can go on; others */
int votes, vote_result;
const std::function<void()> *body;
char *stacks, *shared_end, *shared_now;

/* ---- memory of a block ----------------------------------------------------------------------- */

size_t page_bytes()
{
    return static_cast<size_t>(sysconf(_SC_PAGESIZE));
}

char *map(size_t bytes)
{
    void *at = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (at == MAP_FAILED) ls_emulated_abort("no memory for %zu bytes of stacks", bytes);
    return static_cast<char *>(at);
}

void thread_main();

/* Once: stacks, and shared memory with a page behind it that nothing may touch. */
void open_memory()
{
    if (stacks != nullptr) return;
    stacks = map(static_cast<size_t>(THREADS_MAX) * STACK_BYTES);
    for (int i = 0; i < THREADS_MAX; i++) {
        threads[i].fiber.stack = stacks + static_cast<size_t>(i) * STACK_BYTES;
        threads[i].fiber.stack_bytes = STACK_BYTES;
        ls_fiber_prepare(&threads[i].fiber, thread_main);
    }
    const size_t page = page_bytes();
    const size_t bytes = (SHARED_BYTES_MAX + page - 1) / page * page;
    shared_end = map(bytes + page) + bytes;
    if (mprotect(shared_end, page, PROT_NONE) != 0) ls_emulated_abort("no guard page");
}

void poison_shared(size_t bytes)
{
    shared_now = shared_end - (bytes + 15) / 16 * 16;
    std::memset(shared_now, POISON, static_cast<size_t>(shared_end - shared_now));
}

/* ---- one thread ------------------------------------------------------------------------------ */

void leave(state why, meeting at)
{
    threads[current].now = why;
    threads[current].at = at;
    ls_fiber_switch(&threads[current].fiber, &host);
}

void make_ready(unsigned index)
{
    threads[index].now = state::ready;
    ready[n_ready++] = index;
}

void thread_main()
{
    ls_fiber_started();
    for (;;) {
        (*body)();
        n_done++;
        leave(state::done, {nullptr, 0});
    }
}

void go_on(unsigned index)
{
    current = index;
    ls_emulated_now.thread = threads[index].index;
    ls_fiber_switch(&host, &threads[index].fiber);
}

/* ---- one block ------------------------------------------------------------------------------- */

void start_block(dim3 block)
{
    n_threads = block.x * block.y * block.z;
    n_ready = n_at_barrier = n_done = 0;
    votes = 0;
    ls_emulated_copies_reset(n_threads);
    for (unsigned i = 0; i < n_threads; i++) {
        threads[i].turn = 0;
        threads[i].index = {i % block.x, i / block.x % block.y, i / (block.x * block.y)};
        make_ready(i);
    }
    for (unsigned w = 0; w < (n_threads + WARP - 1) / WARP; w++)
        warps[w].arrived[0] = warps[w].arrived[1] = 0;
}

/* A ready thread; one of the late warp only where luck finds no other. */
unsigned pick_ready(unsigned late)
{
    unsigned pick = static_cast<unsigned>(ls_emulated_draw(n_ready));
    for (int tries = 0; tries < 8 && ready[pick] / WARP == late; tries++)
        pick = static_cast<unsigned>(ls_emulated_draw(n_ready));
    return pick;
}

/* Let each thread run until it can not, in a random order; one warp lags behind the others, which
 * alone would keep nearly abreast. */
void run_ready()
{
    const unsigned n_warps = (n_threads + WARP - 1) / WARP; /* one alone is not held back */
    const unsigned late = static_cast<unsigned>(ls_emulated_draw(n_warps)) + (n_warps == 1);
    while (n_ready > 0) {
        const unsigned pick = pick_ready(late);
        const unsigned index = ready[pick];
        ready[pick] = ready[--n_ready];
        go_on(index);
    }
}

/* All threads stand at one barrier: they may go on. */
void open_barrier()
{
    for (unsigned i = 1; i < n_threads; i++)
        if (threads[i].at.line != threads[0].at.line || threads[i].at.file != threads[0].at.file)
            ls_emulated_abort("%s:%d: thread %u waits there, thread 0 at another barrier: line %d",
                              threads[i].at.file, threads[i].at.line, i, threads[0].at.line);
    vote_result = votes;
    votes = 0;
    n_at_barrier = 0;
    for (unsigned i = 0; i < n_threads; i++) make_ready(i);
}

/* All lanes of a mask have handed in their values: they may go on. */
void open_exchange(unsigned index, int turn)
{
    warp *w = &warps[index];
    for (unsigned lane = 0; lane < WARP; lane++)
        if (w->arrived[turn] >> lane & 1) make_ready(index * WARP + lane);
    w->arrived[turn] = 0;
}

[[noreturn]] void report_stuck()
{
    for (unsigned i = 0; i < n_threads; i++)
        if (threads[i].now != state::done)
            ls_emulated_abort("%s:%d: thread %u of block %u waits there for threads that do not "
                              "come: they have returned, or stand elsewhere",
                              threads[i].at.file, threads[i].at.line, i, ls_emulated_now.block.x);
    ls_emulated_abort("no thread waits, none is ready");
}

void run_block(const ls_emulated_launch &launch, uint3 block)
{
    ls_emulated_now = {{0, 0, 0}, block, launch.block, launch.grid};
    poison_shared(launch.shared_bytes);
    start_block(launch.block);
    for (;;) {
        run_ready();
        if (n_done == n_threads) return;
        if (n_at_barrier != n_threads) report_stuck();
        open_barrier();
    }
}

} // namespace

/* ---- what device code calls ------------------------------------------------------------------ */

void *ls_emulated_shared()
{
    return shared_now;
}

unsigned ls_emulated_thread_number()
{
    return current;
}

bool ls_emulated_in_shared(const void *at, size_t bytes)
{
    const char *from = static_cast<const char *>(at);
    return from >= shared_now && from + bytes <= shared_end;
}

int ls_emulated_barrier(int vote, const char *file, int line)
{
    votes |= vote != 0;
    n_at_barrier++;
    leave(state::at_barrier, {file, line});
    return vote_result;
}

unsigned ls_emulated_lane(unsigned mask, const char *file, int line)
{
    const unsigned lane = current % WARP;
    if ((mask >> lane & 1) == 0)
        ls_emulated_abort("%s:%d: lane %u is not in its mask %#x", file, line, lane, mask);
    return lane;
}

const ls_emulated_words *ls_emulated_exchange(unsigned mask, const ls_emulated_words &words,
                                              const char *file, int line)
{
    const unsigned lane = ls_emulated_lane(mask, file, line);
    thread *t = &threads[current];
    warp *w = &warps[current / WARP];
    const int turn = t->turn;

    t->turn = !turn;
    if (w->arrived[turn] == 0) {
        w->wanted[turn] = mask;
        w->at[turn] = {file, line};
    } else if (w->wanted[turn] != mask || w->at[turn].line != line) {
        ls_emulated_abort("%s:%d: lane %u, mask %#x, meets lanes of line %d, mask %#x", file, line,
                          lane, mask, w->at[turn].line, w->wanted[turn]);
    }
    w->values[turn][lane] = words;
    w->arrived[turn] |= 1u << lane;
    threads[current].now = state::at_exchange;
    if (w->arrived[turn] == mask) open_exchange(current / WARP, turn);
    leave(threads[current].now, {file, line});
    return w->values[turn];
}

/* ---- launches ------------------------------------------------------------------------------- */

void ls_emulated_run(const ls_emulated_launch &launch)
{
    open_memory();
    body = &launch.body;
    host = {};
    for (unsigned z = 0; z < launch.grid.z; z++)
        for (unsigned y = 0; y < launch.grid.y; y++)
            for (unsigned x = 0; x < launch.grid.x; x++) run_block(launch, {x, y, z});
}
