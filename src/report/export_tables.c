/* export_tables.c - every column of the data set, once. */
#include "export.h"

#define N(columns) ((int)(sizeof(columns) / sizeof(columns)[0]))

#define RUN                                                                                        \
    {                                                                                              \
        "run", LS_COLUMN_WHOLE, false, true, "", "number of the run, as in runs.csv"               \
    }
#define MEASURED(name, unit, about)                                                                \
    {                                                                                              \
        name, LS_COLUMN_REAL, true, true, unit, about                                              \
    }
#define TEXT(name, about)                                                                          \
    {                                                                                              \
        name, LS_COLUMN_TEXT, true, false, "", about                                               \
    }

static const ls_column runs[] = {
    {"run", LS_COLUMN_WHOLE, false, true, "", "number of the run"},
    {"name", LS_COLUMN_TEXT, false, false, "", "folder of the run"},
    TEXT("version", "of longspan"),
    TEXT("started", "when its latest attempt began, UTC"),
    TEXT("hardware", "hardware profile"),
    TEXT("cpu", "processor"),
    TEXT("gpu", "name of the first GPU"),
    TEXT("driver", "of the GPU"),
    TEXT("power_limits", "that were in force, by meter"),
    MEASURED("cores", "1", "cores that the run could use"),
    MEASURED("memory_bytes", "B", "memory of the machine"),
    MEASURED("page_bytes", "B", "size of a page"),
    TEXT("model_type", "architecture"),
    MEASURED("parameters", "1", "of the model"),
    MEASURED("sequence_tokens", "1", "length of a sequence"),
    MEASURED("sequences", "1", "of a micro-batch"),
    MEASURED("accumulate", "1", "micro-batches of a step"),
    TEXT("precision", "bf16 or fp32"),
    TEXT("save", "policy of saved activations"),
    TEXT("kernel_matmul", "which matrix product ran"),
    TEXT("kernel_attention", "which attention ran"),
    MEASURED("samples_hz", "1/s", "rate at which sensors were asked"),
};

static const ls_column steps[] = {
    RUN,
    {"step", LS_COLUMN_WHOLE, false, true, "", "optimizer step, from 1"},
    {"attempt", LS_COLUMN_WHOLE, false, true, "", "1, and one more with each resume"},
    MEASURED("tokens", "1", "of the step; padding does not count"),
    MEASURED("pairs", "1", "unmasked (query, key) pairs"),
    {"loss", LS_COLUMN_REAL, true, false, "nat",
     "mean over labels; empty: not finite, or no labels"},
    MEASURED("grad_norm", "1", "before clipping"),
    MEASURED("lr", "1", "learning rate"),
    MEASURED("step_s", "s", "wall time"),
    MEASURED("tokens_per_s", "1/s", "tokens / step_s"),
    MEASURED("flops_model", "FLOP", "6 N tokens + 12 H K L pairs; recomputing does not count"),
    MEASURED("mfu_causal", "1", "flops_model / (step_s peak)"),
    MEASURED("mfu_megatron", "1", "the same with attention counted as if not causal"),
    MEASURED("tflops_alst", "TFLOP/s", "recomputing counted, attention as if not causal"),
    MEASURED("predicted_step_s", "s", "of the plan's simulation"),
    MEASURED("busy_compute_s", "s", "time in commands of the lane"),
    MEASURED("busy_copy_in_s", "s", "time in commands of the lane"),
    MEASURED("busy_copy_out_s", "s", "time in commands of the lane"),
    MEASURED("busy_host_s", "s", "time in commands of the lane"),
    MEASURED("busy_disk_in_s", "s", "time in commands of the lane"),
    MEASURED("busy_disk_out_s", "s", "time in commands of the lane"),
    MEASURED("copy_in_bytes", "B", "host to device"),
    MEASURED("copy_out_bytes", "B", "device to host"),
    MEASURED("peak_host_bytes", "B", "largest resident set so far, without the file of nvme"),
    MEASURED("peak_hbm_bytes", "B", "device memory that the plan reserves"),
    MEASURED("energy_gpu_j", "J", "the GPU with its memory"),
    MEASURED("energy_module_j", "J", "the whole module: holds gpu and grace"),
    MEASURED("energy_cpu_j", "J", "x86: the processor packages; Grace: the cores' rail alone"),
    MEASURED("energy_grace_j", "J", "the Grace socket with LPDDR: holds cpu and sysio"),
    MEASURED("energy_sysio_j", "J", "Grace's SoC rail"),
    MEASURED("energy_dram_j", "J", "x86: memory; beside cpu"),
    MEASURED("energy_gpu_memory_j", "J", "part of gpu"),
};

static const ls_column evals[] = {
    RUN,
    {"step", LS_COLUMN_WHOLE, false, true, "", "after this step"},
    {"loss", LS_COLUMN_REAL, true, false, "nat",
     "held-out, mean over labels; empty: not finite, or no labels"},
    MEASURED("tokens", "1", "labels"),
    MEASURED("seconds", "s", "wall time"),
};

static const ls_column positions[] = {
    RUN,
    MEASURED("from", "1", "first position of the bin"),
    MEASURED("to", "1", "first position behind it"),
    {"loss", LS_COLUMN_REAL, true, false, "nat", "mean over labels in the bin, latest evaluation"},
};

static const ls_column energy[] = {
    RUN,
    {"attempt", LS_COLUMN_WHOLE, false, true, "", "1, and one more with each resume"},
    {"rail", LS_COLUMN_RAIL, false, false, "", "which rail; rails overlap, never add them"},
    TEXT("phase", "what the compute lane did; empty: the whole attempt, saves and evaluations too"),
    MEASURED("seconds", "s", "how long"),
    MEASURED("joules", "J", "by the method; empty: too short for the rail's meter"),
    TEXT("method", "counter, meter, instant or average"),
    MEASURED("coverage", "1", "part of the time that its sensors told"),
    MEASURED("error_joules", "J", "what the ends may be off by"),
    MEASURED("disagreement", "1", "largest relative difference of another method"),
    MEASURED("idle_watts", "W", "before the first step, where record.idle_s asks for it"),
};

static const ls_column power[] = {
    RUN,
    {"time_s", LS_COLUMN_REAL, false, true, "s", "since the first sample of the run"},
    TEXT("phase", "what the compute lane did"),
    {"rail", LS_COLUMN_RAIL, false, false, "", "which rail; rails overlap, never add them"},
    MEASURED("watts", "W",
             "of the rail's best method; of a counter the mean since it moved before"),
};

static const ls_column sensors[] = {
    RUN,
    {"id", LS_COLUMN_TEXT, false, false, "", "as in power.csv of the run directory"},
    {"rail", LS_COLUMN_RAIL, false, false, "", "none: a state, not power"},
    TEXT("kind", "power, energy (a counter) or state"),
    TEXT("method", "counter, meter, instant or average"),
    TEXT("unit", "of its raw values"),
    MEASURED("scale", "W, J or units of one raw unit", ""),
    MEASURED("window_s", "s", "power: the mean of how long; 0: of a moment"),
    MEASURED("update_period_s", "s", "as measured"),
    MEASURED("wrap_joules", "J", "where a counter starts again"),
    TEXT("contains", "what of the machine it measures"),
    TEXT("source", "file, or field with scope"),
};

/* The names that CodeCarbon's rows have, for tools that read them; what it estimates is left out.
 */
static const ls_column codecarbon[] = {
    RUN,
    TEXT("timestamp", "when the run's latest attempt began, UTC"),
    TEXT("project_name", "folder of the run"),
    MEASURED("duration", "s", "of the steps whose energy is known"),
    MEASURED("cpu_power", "W", "Grace socket with memory, or processor packages"),
    MEASURED("gpu_power", "W", "the GPU with its memory"),
    MEASURED("ram_power", "W", "memory, where it is not in cpu_power"),
    MEASURED("cpu_energy", "kWh", "of the steps whose joules are known; the same below"),
    MEASURED("gpu_energy", "kWh", ""),
    MEASURED("ram_energy", "kWh", ""),
    MEASURED("energy_consumed", "kWh", "the module, or else the sum of those three that are known"),
    MEASURED("cpu_count", "1", "cores"),
    TEXT("cpu_model", ""),
    TEXT("tracking_mode", "machine: what other programs drew is in it"),
};

const ls_table ls_tables[LS_TABLES] = {
    {"runs", "one line for each run", runs, N(runs)},
    {"steps", "one line for each optimizer step", steps, N(steps)},
    {"evals", "held-out losses", evals, N(evals)},
    {"positions", "loss by position in the sequence", positions, N(positions)},
    {"energy", "energy of each attempt that ended, by rail and phase", energy, N(energy)},
    {"power", "power by rail over time, thinned out to 2000 moments a run", power, N(power)},
    {"sensors", "every sensor of every run", sensors, N(sensors)},
    {"codecarbon", "energy of each run in CodeCarbon's columns", codecarbon, N(codecarbon)},
};
