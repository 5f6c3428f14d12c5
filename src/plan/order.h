/*
 * order.h - private to the plan: the waits that order its steps.
 *
 * Layer: plan, private.
 */
#ifndef LS_ORDER_H
#define LS_ORDER_H

#include "plan.h"

/*
 * Set the waits and carries of a plan whose steps, operands and spans are final.
 * Returns LS_OK or LS_ERR_NO_MEMORY.
 */
ls_status ls_plan_order(ls_plan *plan);

#endif
