/* command_convert.c - longspan convert */
#include <stdio.h>

#include "commands.h"

static const char help[] =
    "usage: longspan convert SRC DST [options]\n"
    "\n"
    "SRC a Hugging Face folder (config.json, *.safetensors): DST becomes a checkpoint of step 0,\n"
    "checked, with checksums, for init: pretrained and eval --checkpoint.  SRC a checkpoint (it "
    "has\n"
    "a state.json): DST becomes a plain Hugging Face folder without optimizer states.  Tensors "
    "keep\n"
    "their names, dtypes and bytes; tokenizer and generation settings come along.  DST must not\n"
    "exist; what fails or is interrupted leaves nothing behind.\n"
    "\n"
    "  --json, --quiet, --verbose, --help\n"
    "\n"
    "example: longspan convert runs/demo/checkpoints/step-00000300 demo-hf\n";

static int run(int argc, char **argv)
{
    static arguments parsed;
    longspan_convert_result made;
    const option options[] = {{NULL, OPTION_FLAG, NULL}};
    const int failed = arguments_parse("convert", argc, argv, options, &parsed);

    if (failed) return failed;
    if (parsed.help) return print_help(&command_convert);
    if (parsed.n_paths != 2) return usage_error("convert", "want SRC and DST");
    signals_install(SIGNALS_TIDY);
    const int result = longspan_convert(parsed.paths[0], parsed.paths[1], &made);
    if (result == LONGSPAN_ERROR_STOPPED) {
        report_result(&parsed, result);
        return signals_exit_code();
    }
    if (result != 0) return report_result(&parsed, result);
    if (parsed.json)
        printf("{\"kind\":\"%s\",\"tensors\":%lld,\"parameters\":%lld,\"bytes\":%llu}\n",
               made.to_checkpoint ? "checkpoint" : "hf", (long long)made.tensors,
               (long long)made.parameters, (unsigned long long)made.bytes);
    else if (!parsed.run.quiet)
        printf("%s: %s of %lld tensors, %.2fM parameters%s\n", parsed.paths[1],
               made.to_checkpoint ? "checkpoint" : "Hugging Face folder", (long long)made.tensors,
               1e-6 * (double)made.parameters, made.to_checkpoint ? "; step 0, moments are 0" : "");
    return EXIT_DONE;
}

const command command_convert = {"convert", "Hugging Face folder to checkpoint, and back", help,
                                 run};
