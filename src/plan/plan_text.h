/*
 * plan_text.h - a plan as text, to read, to compare and to keep; and back.
 *
 *   longspan-plan 1
 *   counts   arenas=1 tensors=72 groups=94 carries=45 steps=1218 waits=142
 *   arena    0 place=host bytes=132352
 *   tensor   x.0  dims=24x16 dtype=BF16 role=x layer=0 param=- arena=0 offset=512 bytes=768
 *            group=31   (one line)
 *   carry    ~0 lane=host group=3 ends step=401 step+save=902 eval=- drain=-
 *   segment  step first=0 steps=402
 *   step     3 add compute forward layer=0 chunk=0 flops=0 bytes=480 y=w:y+0:160
 *            a=r:x.0+0:160 b=r:proj+0:160 n=80 dtype=BF16 waits=1,~0   (one line)
 *   end
 *
 * One line each, names before numbers; "-" is none.  An operand is access:tensor+offset:bytes, the
 * offset counted from the tensor's start.  Reals are whole or hexadecimal, so nothing is lost.  A
 * wait is the number of a step, or ~ and that of a carry; `copy of=3` behind a tensor names, by
 * number, an earlier one that it is kept a copy of.  Tensors are told apart by name.
 *
 * Layer: plan.  Threads: no shared state.
 */
#ifndef LS_PLAN_TEXT_H
#define LS_PLAN_TEXT_H

#include <stdio.h>

#include "plan.h"

/* Write a plan that ls_plan_check() accepts.  LS_ERR_IO. */
ls_status ls_plan_write_text(const ls_plan *plan, FILE *file);

/*
 * Read what ls_plan_write_text() wrote; words of a line may be further apart and lines may be
 * empty.  Whether the plan is sound is for ls_plan_check() to say.  Memory stays within a small
 * multiple of the text's size, whatever it holds.
 *   name  stands for the file in messages
 *   plan  [out] release with ls_plan_free()
 * Returns LS_OK, LS_ERR_CORRUPT ("NAME:LINE: what is wrong"), LS_ERR_NO_MEMORY.
 */
ls_status ls_plan_read_text(const char *name, const char *text, size_t bytes, ls_plan *plan);

#endif
