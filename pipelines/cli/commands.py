"""All commands and their arguments, as one table; `main` makes the parser of it."""

import math
from pathlib import Path

from tpu_components.core.step.command_line import json_object
from tpu_components.serving.params import ServeParams
from tpu_pipelines.cli.arguments import (
    CONFIG,
    EXPORTED,
    HERE,
    JOB,
    KINDS,
    MARKDOWN,
    MODEL,
    NO_DOCTOR,
    POLL,
    SET,
    SETTINGS,
    VERSION_FORMS,
    WAIT,
    WORKSPACE,
    Command,
    Group,
    added_to,
    argument,
    confidence,
    flag,
    json_flag,
    limit,
    number,
    output_file,
    target,
    targets,
    user_path,
)
from tpu_pipelines.config.settings import TARGET_SETTINGS

COMMANDS = (
    Command(
        "init",
        "look at your data, and write a first configuration and model for them",
        "Look at data, and write a configuration for them, with the reasons for what it sets, and a model to start "
        "from. On a terminal, what is not said is asked for.",
        "~/flowers --name flowers",
        "start.init",
        (
            argument(
                "place",
                nargs="?",
                default="",
                metavar="DIR",
                help="a folder of images, texts, .tar, .parquet or .tfrecord files, or a .csv, .npz or .txt file; "
                "gs:// too. With --from model: its file",
            ),
            argument(
                "--from",
                choices=(*KINDS, MODEL),
                default="",
                dest="kind",
                help="what DIR is (default: what it looks like)",
            ),
            argument("--data", default="", metavar="DIR", help="with --from model: the data"),
            argument("--model", default="", metavar="MODEL", help="a ready model, or your .py or .keras file"),
            argument("--name", default="", metavar="NAME", help="of the runs and of the files (default: that of DIR)"),
            argument("--output", type=user_path, default=Path(), metavar="DIR", help="for the files (default: here)"),
            flag("--workflow", "also write a GitHub workflow that retrains"),
            flag("--force", "overwrite files that are there"),
            SET,
        ),
    ),
    Command(
        "check",
        "find out in seconds what would stop a run, or spoil it",
        "Check a configuration as far as seconds allow: the settings, the data and some examples of them, the model, "
        "which is imported and built, the machine, and settings that contradict each other; with --target also what a "
        "platform needs. Trains nothing, and asks no platform.",
        "flowers.yaml",
        "start.check",
        (
            *CONFIG,
            WORKSPACE,
            argument("--target", choices=tuple(TARGET_SETTINGS), default="", help=""),
            SETTINGS,
            json_flag(),
        ),
    ),
    Command(
        "schema",
        "print what a configuration may hold, for editors or as a table",
        "Print the JSON Schema of a configuration. An editor that speaks YAML completes and explains the settings of "
        "a file that begins with: # yaml-language-server: $schema=FILE",
        "--markdown",
        "editors.schema",
        (flag("--markdown", "print a table of all settings instead"),),
    ),
    Command(
        "drift",
        "test whether data have drifted: 0 no drift, 3 drifted",
        "Compare the statistics of records (brightness, contrast, sharpness, colours, sizes; words and unknown words; "
        "classes or targets; unreadable inputs) with those of other records, or with those of a registered version's "
        "training data. A statistic has drifted if the difference is significant at the confidence, corrected for the "
        "number of statistics, and if it is large enough to matter.",
        "runs/flowers/records --against flowers@champion",
        "models.drift",
        (
            argument("records", metavar="RECORDS", help="folder that create_tfrecords wrote, here or in a bucket"),
            argument(
                "--against",
                required=True,
                metavar="RECORDS|VERSION",
                help=f"records to compare with, or a version: {VERSION_FORMS}",
            ),
            WORKSPACE,
            confidence("data that are alike"),
            argument("--output", type=output_file, metavar="FILE", help="page to write, for example drift.html"),
            json_flag(),
        ),
    ),
    Command(
        "monitor",
        "test whether a server's predictions have drifted: 0 no drift, 3 drifted",
        "Compare the predictions that a server has logged (`tpu-pipelines serve --log FILE`) with the version's "
        "predictions for its test split, made with the same export format: confidence and mix of classes, with the "
        "tests of `drift`. With --latency-ms, also test whether 95 of 100 requests are answered within this time.",
        "log.jsonl --against digits@champion --latency-ms 50",
        "models.monitor",
        (
            argument("log", type=user_path, metavar="LOG", help="file that the server wrote"),
            argument("--against", required=True, metavar="VERSION", help=f"version that answered: {VERSION_FORMS}"),
            WORKSPACE,
            argument(
                "--latency-ms",
                type=number("a number above 0", lambda limit: 0 < limit < math.inf),
                metavar="MS",
                help="time limit for 95 of 100 requests, in milliseconds",
            ),
            confidence("logs like the evaluation"),
            json_flag(),
        ),
    ),
    Command(
        "run",
        "run the whole pipeline on this machine",
        "Run the whole pipeline on this machine. Unchanged steps are taken from the last run.",
        "digits --set training.epochs=3",
        "runs.run",
        (
            argument(
                "config",
                nargs="?",
                default="digits",
                metavar="CONFIG",
                help="a ready example or a YAML file (default: digits)",
            ),
            SET,
            WORKSPACE,
            json_flag("print the summary, and nothing else, on stdout"),
            argument("--runner", choices=("subprocess", "docker"), default="subprocess"),
            flag("--force", "run every step, also those that are unchanged"),
        ),
    ),
    Command(
        "export",
        "export a run's model whatever the gate says, to try it",
        "Export the model that a run has trained, also one that the gate has rejected, to try it with `predict` and "
        "`serve`. Registers and promotes nothing; the next run of that name takes the export away.",
        "runs/digits --set export.max_int8_accuracy_drop=0.02",
        "runs.export",
        (
            argument("run", type=user_path, metavar="RUN", help="the folder of a run, as runs/digits"),
            argument("--set", action="append", default=[], metavar="EXPORT.KEY=VALUE", dest="overrides"),
            argument("--output", type=user_path, metavar="DIR", help="the export (default: RUN/export)"),
            json_flag("print export.json, and nothing else, on stdout"),
        ),
    ),
    Command(
        "compare",
        "several runs side by side",
        "Show runs side by side: metrics, speed, sizes, and in what their configurations differ; and write a page "
        "that shows their training curves too.",
        "runs/digits runs/mnist_cnn",
        "runs.compare",
        (
            argument(
                "runs",
                nargs="+",
                type=user_path,
                metavar="RUN",
                help="the folder of a run, as runs/digits; others are left out",
            ),
            argument(
                "--output",
                type=user_path,
                metavar="FILE",
                help="the page (default: comparison.html beside the first run)",
            ),
            Group((json_flag(), flag("--markdown", "print Markdown tables, for a pull request"))),
        ),
    ),
    Command(
        "runs",
        "list the runs of a workspace, or delete some",
        "[list] [NAME]: every run that is kept, of one name or all: when it ended, what became of it, its figures and "
        "its size; of all also as a page, index.html. clean [NAME]: delete earlier runs, and cached steps that no run "
        "is made of any more. delete NAME: delete the latest run of a name; NAME@3 the earlier one of that number. "
        "Both ask first.",
        "clean digits --keep 5",
        "runs.runs",
        (
            argument("action", nargs="?", default="list", metavar="list|clean|delete", help="(default: list)"),
            argument("name", nargs="?", default="", metavar="NAME", help="of the configuration (default: all)"),
            WORKSPACE,
            argument("--keep", type=int, default=0, metavar="N", help="clean: earlier runs to keep (default: 0)"),
            flag("--yes", "clean, delete: do not ask; needed without a terminal"),
            json_flag(),
        ),
    ),
    Command(
        "board",
        "show the curves of runs in TensorBoard",
        "Start TensorBoard on the curves of the latest runs, also of one that trains; ends with Ctrl-C.",
        "digits mnist_cnn",
        "runs.board",
        (
            argument("names", nargs="*", metavar="NAME", help="of the configurations (default: all)"),
            WORKSPACE,
            argument("--port", type=int, default=6006, metavar="N", help="0 takes a free one (default: 6006)"),
        ),
    ),
    Command(
        "predict",
        "answer images or texts, or continue a text, on CPU with an exported model",
        "Answer images or texts on CPU with an exported model: the likeliest classes, the labels above a probability "
        "of 0.5, or the numbers of a regression; or continue a text. Needs no TensorFlow and no training code.",
        "runs/digits digit.png",
        "models.predict",
        (
            *EXPORTED,
            argument(
                "inputs",
                nargs="+",
                metavar="INPUT",
                help="image files, folders of them, or .npy/.npz arrays; for a model of texts files, folders of them, "
                ".csv files, .npy/.npz arrays of strings, or texts themselves; - reads an image, or a line for each "
                "instance, from stdin: a text, or JSON as the server takes it",
            ),
            argument(
                "--output",
                type=Path,
                metavar="FILE",
                help="write an answer for every example of INPUT, a folder, a table or any source as csv:FILE, to a "
                ".jsonl or .parquet file: with progress, each once, and where the command was ended it goes on. What "
                "cannot be read is set aside with the reason, in a file beside it",
            ),
            flag("--lines", "a file holds a text a line"),
            argument("--column", default="text", metavar="NAME", help="of a .csv file (default: text)"),
            argument(
                "--columns",
                type=json_object,
                metavar="JSON",
                help='with --output: columns of a table that have other names, as {"path": "filename", "id": '
                '"customer"} (default: those of the run that trained the model, where MODEL is its folder)',
            ),
            argument(
                "--keep",
                nargs="+",
                default=[],
                metavar="COLUMN",
                help="with --output: columns whose values stand beside each answer; the id does anyway",
            ),
            argument("--top", type=int, default=3, metavar="K", help="classes to name per input (default: 3)"),
            json_flag("one JSON line per input"),
            flag("--int8", "use the int8 model"),
            Group(
                (
                    argument("--length", type=int, default=200, metavar="N", help="characters to write (default: 200)"),
                    argument(
                        "--temperature",
                        type=float,
                        default=0.8,
                        metavar="T",
                        help="1 draws by the probabilities, less prefers the likely, 0 takes the likeliest "
                        "(default: 0.8)",
                    ),
                    argument(
                        "--seed", type=int, default=0, metavar="N", help="equal seeds give equal texts (default: 0)"
                    ),
                ),
                "language models",
                "INPUT is a text to continue, as 'ROMEO:'",
            ),
        ),
    ),
    Command(
        "serve",
        "answer predictions over HTTP with an exported model",
        "Answer predictions over HTTP on CPU with an exported model, by Vertex AI's contract for custom containers. "
        "Needs no TensorFlow and no training code. Ctrl-C ends it.",
        "runs/digits --port 8080",
        "models.serve",
        (*EXPORTED, ServeParams),
    ),
    Command(
        "verify",
        "verify the signatures of a registered version, or of an export",
        "Verify the signatures of a registered version, or of an export: every file is as it was signed, and there is "
        "no other. Exit code 2 where it is not, or the signature is missing or another key's.",
        "digits@champion --key signing.pub",
        "models.verify",
        (
            *EXPORTED,
            argument("--key", required=True, metavar="FILE", help="the public key in PEM, here or on gs://"),
        ),
    ),
    Command(
        "registry",
        "list registered models, show one, promote one by hand or roll back",
        "list [NAME]: the versions of every model, or of one. show NAME [VERSION]: all that is recorded of the "
        "champion, or of a version. promote NAME VERSION: make it the champion, whatever the gate says. rollback "
        "NAME: return to the champion before; runs do not undo that.",
        "promote digits 0003 --reason 'tried by hand'",
        "registry.registry",
        (
            argument("action", choices=("list", "show", "promote", "rollback")),
            argument("name", nargs="?", default="", metavar="NAME", help="the model, as the run that made it"),
            argument("version", nargs="?", default="", metavar="VERSION", help="as 0001"),
            WORKSPACE,
            argument("--registry", type=user_path, metavar="DIR", help="a registry elsewhere than in the workspace"),
            argument("--reason", default="", metavar="TEXT", help="goes into the history"),
            argument(
                "--verify",
                metavar="FILE",
                help="move the champion only to a version whose signatures hold for this public key",
            ),
            json_flag(),
        ),
    ),
    Command(
        "preflight",
        "compile the training step for a TPU, without one: fit, time, price",
        "Compile the training step with the real TPU compiler on this machine, which needs no TPU, and say whether it "
        "fits, how long a step and an epoch take, what a run costs and how long the device waits for data.",
        "digits --compare v2-8,v5e-4",
        "start.preflight",
        (
            *CONFIG,
            Group(
                (
                    argument(
                        "--machine",
                        metavar="NAME",
                        help="a TPU slice, as v5e-4 (default: the configuration's, and its fallbacks)",
                    ),
                    argument("--compare", metavar="NAME,NAME…", help="several slices, side by side"),
                )
            ),
            argument(
                "--target",
                type=targets,
                default=("vertex",),
                metavar="NAME[,NAME]",
                help="whose price a run is judged by: vertex, kubeflow, or both, side by side (default: vertex)",
            ),
            argument(
                "--against",
                metavar="VERSION|REPORT",
                help=f"fail where it is slower or dearer than a registered version ({VERSION_FORMS}), or than the "
                "first of a preflight.json",
            ),
            argument(
                "--examples",
                type=int,
                metavar="N",
                help="for so many examples, of which the data at hand are a sample: time, price and waiting for data "
                "to come",
            ),
            argument(
                "--image-bytes",
                type=int,
                metavar="N",
                help="with --examples: bytes of an image file (default: as at hand)",
            ),
            limit("--slower", "an epoch may be slower"),
            limit("--dearer", "a run may be dearer"),
            MARKDOWN,
            WORKSPACE,
            json_flag("print the report, and nothing else, on stdout"),
        ),
    ),
    Command(
        "machines",
        "list the TPU machines that a configuration can name",
        "List every TPU slice that Vertex trains on: its fields, its chips, its prices, its regions.",
        "--generation v5e",
        "machines.machines",
        (
            argument("--generation", default="", metavar="NAME", help="only of this one, as v5e"),
            argument("--region", default="", metavar="NAME", help="only what trains there, as us-west1"),
            json_flag("print a JSON list, with the source of every value"),
        ),
    ),
    Command(
        "compile",
        "write the pipeline as a file for a cloud platform",
        "Write the pipeline as a file for a cloud platform, training on the machine of the configuration. Needs no "
        "account; settings that are known by now go into the file.",
        "digits --target vertex --output digits.yaml",
        "platforms.compile",
        (
            *CONFIG,
            *target(""),
            argument("--output", type=user_path, required=True, metavar="FILE", help="as pipeline.yaml"),
        ),
    ),
    Command(
        "submit",
        "run the pipeline on a cloud platform",
        "Compile the pipeline and start it on a cloud platform. The same configuration, data and code are the same "
        "run: it is started once, and found when it is submitted again. Where its machine cannot be had, the "
        "fallbacks are tried.",
        "digits --set machine=v5e-4 --wait",
        "platforms.submit",
        (
            *CONFIG,
            *target(),
            *WAIT,
            flag("--again", "start the run once more if it has ended"),
            NO_DOCTOR,
            flag("--dry-run", "say what would be sent, and send nothing"),
            argument("--output", type=output_file, metavar="FILE", help="of a dry run: write what is sent, as JSON"),
            json_flag("print the run, or of a dry run what is sent, as JSON alone on stdout"),
        ),
        needs_settings=True,
    ),
    Command(
        "status",
        "what became of a run on a cloud platform",
        "Say what became of the newest run of a name; exits as `submit --wait` does.",
        "digits",
        "jobs.status",
        (JOB, *target(), json_flag("print the run as JSON, and nothing else, on stdout")),
    ),
    Command(
        "cancel",
        "stop a run on a cloud platform",
        "Stop the newest run.",
        "digits",
        "jobs.cancel",
        (JOB, *target()),
    ),
    Command(
        "schedule",
        "run the pipeline on a cloud platform at certain times",
        "Create the schedule of a configuration or change it, and print what changes; there is one for each name. The "
        "platform starts its runs on the configuration's machine; it knows no fallbacks.",
        "digits --cron '0 3 * * *'",
        "platforms.schedule",
        (
            *CONFIG,
            Group(
                (
                    argument("--cron", metavar="EXPRESSION", help="as '0 3 * * *' or 'TZ=Europe/Berlin 0 3 * * 1-5'"),
                    *(
                        argument(f"--{action}", action="store_const", const=action, dest="action", help=text)
                        for action, text in (
                            ("pause", "start no more runs"),
                            ("resume", "start runs again"),
                            ("delete", "delete the schedule"),
                        )
                    ),
                ),
                is_required=True,
            ),
            *target(),
            NO_DOCTOR,
            flag("--dry-run", "print what would change, and change nothing"),
        ),
        needs_settings=True,
    ),
    Command(
        "retrain",
        "run again what has changed: for CI",
        "Run the pipeline if its data, configuration or code have changed since the last run of its name, and say "
        "which. What was run before is not run again, unless it failed. May be started as often as there is reason to "
        "look, on a platform also several times at once, and again after it was killed. Every decision is kept beside "
        "the registry, or in the bucket or workspace where there is none.",
        "digits --target local --when changed,older-than=30d",
        "retraining.retrain",
        (
            *CONFIG,
            *target(also=(HERE,)),
            WORKSPACE,
            *WAIT,
            argument(
                "--when",
                metavar="OCCASIONS",
                help="any of changed, drifted (the data, from those of the champion), older-than=30d (or 12h) and "
                "always, with commas between (default: changed)",
            ),
            Group(
                (
                    flag("--dry-run", "say whether a run is needed, and why; start none"),
                    flag("--history", "list what was decided, and what became of it"),
                )
            ),
            NO_DOCTOR,
            flag("--force", "run every step, though nothing has changed"),
            argument("--output", type=output_file, metavar="FILE", help="page that --history writes, as retrain.html"),
            MARKDOWN,
            argument("--junit", type=output_file, metavar="FILE", help="write the gate's rules as JUnit XML"),
            argument(
                "--outputs",
                type=added_to,
                metavar="FILE",
                help="add needed=, outcome=, run= and version= to a file, as $GITHUB_OUTPUT",
            ),
            json_flag(),
        ),
    ),
    Command(
        "doctor",
        "what a cloud platform still lacks for a run",
        "Ask a cloud platform, reading alone, for everything that a run of the configuration needs there: ok is "
        "there; error is missing and hint is not as it should be, with what to do; unknown is what it does not say to "
        "you. Exits with 2 at an error or a hint.",
        "digits --target vertex",
        "platforms.doctor",
        (
            *CONFIG,
            *target(),
            argument("--kube-context", default="", metavar="NAME", help="kubeflow: ask its cluster, too, as kubectl"),
            json_flag("print a JSON list, and nothing else, on stdout"),
        ),
        needs_settings=True,
    ),
    Command(
        "smoke",
        "the smallest run on a cloud platform, for what only that can say",
        "Send the smallest run, the digits on one TPU, twice: the second time the platform's cache is to answer. "
        "Prints as a table what only the platform can say: user and rights, the TPU seen, times, cache. Says the "
        "price first, and sends nothing without --yes.",
        "--target vertex --machine v5e-1 --yes",
        "platforms.smoke",
        (
            *target(),
            SET,
            argument("--machine", default="v5e-1", metavar="NAME", help="to train on (default: v5e-1)"),
            flag("--yes", "confirm the price, and send the run"),
            POLL,
            NO_DOCTOR,
            json_flag("print questions and answers as JSON on stdout"),
            argument(
                "--report",
                type=output_file,
                metavar="FILE",
                help="write what the platform answered as rules for a fake of it",
            ),
        ),
        needs_settings=True,
    ),
    Command(
        "completion",
        "print what makes your shell complete these commands",
        "Print a script for a shell, with which it completes commands, flags, ready examples and files. Bash: eval "
        '"$(tpu-pipelines completion bash)" in ~/.bashrc. Zsh: tpu-pipelines completion zsh > a file _tpu-pipelines '
        "in a folder of $fpath.",
        "bash",
        "editors.completion",
        (argument("shell", choices=("bash", "zsh", "tcsh"), metavar="SHELL", help="bash, zsh or tcsh"),),
    ),
)
