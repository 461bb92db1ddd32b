"""Table of all commands and their arguments, from which `main` builds the parser."""

import functools
from collections.abc import Mapping
from pathlib import Path

from tpu_components.core.base.typed_values import Amount, Positive, Seed
from tpu_components.core.component.command_line import add_params
from tpu_components.serving.params import ServeParams
from tpu_pipelines.cli.arguments import (
    CONFIG,
    EXPORTED,
    JOB,
    KINDS,
    MARKDOWN,
    MODEL,
    NO_DOCTOR,
    SET,
    SETTINGS,
    VERSION_FORMS,
    WAIT,
    WORKSPACE,
    Command,
    added_to,
    argument,
    confidence,
    either,
    flag,
    headed,
    json_flag,
    limit,
    output_file,
    target,
    targets,
    typed,
    user_path,
)
from tpu_pipelines.platforms.platform import PLATFORMS, default_platform

COMMANDS = (
    Command(
        "init",
        "inspect your data, and write a first configuration and model for them",
        "Inspect data, and write a configuration for them, with a comment on each choice, and a model to start from. "
        "On a terminal, the command asks for missing arguments.",
        "~/flowers --name flowers",
        "start.init",
        (
            argument(
                "place",
                nargs="?",
                default="",
                metavar="DIR",
                help=(
                    "a folder of images, texts, .tar, .parquet or .tfrecord files, or a .csv, .npz or .txt file. "
                    "It may be on gs://. With --from model: the model's file"
                ),
            ),
            argument(
                "--from",
                choices=(*KINDS, MODEL),
                default="",
                dest="kind",
                help="kind of data in DIR (default: detected)",
            ),
            argument("--data", default="", metavar="DIR", help="with --from model: folder or file of the data"),
            argument("--model", default="", metavar="MODEL", help="a ready-made model, or your .py or .keras file"),
            argument("--name", default="", metavar="NAME", help="name of the runs and files (default: name of DIR)"),
            argument(
                "--output", type=user_path, default=Path(), metavar="DIR", help="folder for the files (default: .)"
            ),
            flag("--workflow", "also write a GitHub workflow that retrains"),
            flag("--force", "overwrite existing files"),
            SET,
        ),
    ),
    Command(
        "check",
        "find in seconds what would stop a run or bias its result",
        "Check a configuration within seconds: the settings, the data and some examples, the model (which is "
        "imported and built), the machine, and contradictory settings. With --target, also check the requirements of "
        "a platform. Without --target, estimate from a few training steps how long training takes on this machine. "
        "No request is sent to a platform.",
        "flowers.yaml",
        "start.check",
        (
            *CONFIG,
            WORKSPACE,
            argument("--target", choices=PLATFORMS, default="", help="platform to check for"),
            SETTINGS,
            json_flag(),
        ),
    ),
    Command(
        "schema",
        "print all settings of a configuration, for editors or as a table",
        "Print the JSON Schema of a configuration. An editor that supports YAML completes and explains the settings of "
        "a file that begins with: # yaml-language-server: $schema=FILE",
        "--markdown",
        "editors.schema",
        (flag("--markdown", "print a table of all settings instead"),),
    ),
    Command(
        "drift",
        "test whether data have drifted; exit code 3 means drift",
        "Compare the statistics of records with those of other records, or with those of a registered version's "
        "training data. The statistics are brightness, contrast, sharpness, colours and sizes; words and unknown "
        "words; classes or targets; and unreadable inputs. A statistic has drifted if the difference is significant "
        "at the chosen confidence, corrected for the number of statistics, and if it is large enough to matter.",
        "runs/flowers/records --against flowers@champion",
        "models.drift",
        (
            argument("records", metavar="RECORDS", help="folder that create_tfrecords wrote, local or in a bucket"),
            argument(
                "--against",
                required=True,
                metavar="RECORDS|VERSION",
                help=f"records to compare with, or a version: {VERSION_FORMS}",
            ),
            WORKSPACE,
            confidence("between two samples of the same distribution"),
            argument("--output", type=output_file, metavar="FILE", help="page to write, for example drift.html"),
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
            argument(
                "--runner",
                choices=("subprocess", "docker"),
                default="subprocess",
                help="run each step as a process or in a container (default: subprocess)",
            ),
            flag("--force", "run every step, even if it is unchanged"),
        ),
    ),
    Command(
        "export",
        "export a run's model even if the gate has rejected it",
        "Export the model that a run has trained, even if the gate has rejected it, so that you can try it with "
        "`predict` and `serve`. The model is not registered or promoted. The next run with the same name removes the "
        "export.",
        "runs/digits --set export.max_int8_accuracy_drop=0.02",
        "runs.export",
        (
            argument("run", type=user_path, metavar="RUN", help="folder of a run, for example runs/digits"),
            argument(
                "--set",
                action="append",
                default=[],
                metavar="EXPORT.KEY=VALUE",
                dest="overrides",
                help="change one setting of the export; may be repeated",
            ),
            argument("--output", type=user_path, metavar="DIR", help="folder of the export (default: RUN/export)"),
            json_flag("print export.json, and nothing else, on stdout"),
        ),
    ),
    Command(
        "compare",
        "compare several runs side by side",
        "Show runs side by side: metrics, speed, sizes, and differences between their configurations. Also write a "
        "page that shows their training curves.",
        "runs/digits runs/mnist_cnn",
        "runs.compare",
        (
            argument(
                "runs",
                nargs="+",
                type=user_path,
                metavar="RUN",
                help="folder of a run, for example runs/digits. Other folders are left out",
            ),
            argument(
                "--output",
                type=user_path,
                metavar="FILE",
                help="page to write (default: comparison.html next to the first run)",
            ),
            either(json_flag(), flag("--markdown", "print Markdown tables, for a pull request")),
        ),
    ),
    Command(
        "runs",
        "list the runs of a workspace, or delete some",
        "[list] [NAME]: list every kept run, with the time it ended, outcome, metrics and size; with NAME, only runs "
        "with this name; without NAME, also write a page, index.html. clean [NAME]: delete earlier runs, and cached "
        "steps that no run uses any more. delete NAME: delete the latest run with this name; NAME@3 deletes the third "
        "one. clean and delete ask for confirmation.",
        "clean digits --keep 5",
        "runs.runs",
        (
            argument("action", nargs="?", default="list", metavar="list|clean|delete", help="(default: list)"),
            argument("name", nargs="?", default="", metavar="NAME", help="name of the runs (default: all)"),
            WORKSPACE,
            argument(
                "--keep", type=int, default=0, metavar="N", help="clean: number of earlier runs to keep (default: 0)"
            ),
            flag("--yes", "clean, delete: do not ask for confirmation; required without a terminal"),
            json_flag(),
        ),
    ),
    Command(
        "board",
        "show the curves of runs in TensorBoard",
        "Start TensorBoard with the curves of the latest runs, including runs that are still training. Stop it with "
        "Ctrl-C.",
        "digits mnist_cnn",
        "runs.board",
        (
            argument("names", nargs="*", metavar="NAME", help="names of the runs (default: all)"),
            WORKSPACE,
            argument("--port", type=int, default=6006, metavar="N", help="port; 0 chooses a free one (default: 6006)"),
        ),
    ),
    Command(
        "predict",
        "predict images or texts, or continue a text, on a CPU with an exported model",
        "Predict images or texts on a CPU with an exported model, or continue a text. The result is the most "
        "probable classes, the labels with a probability above 0.5, or the numbers of a regression. Neither "
        "TensorFlow nor training code is needed.",
        "runs/digits digit.png",
        "models.predict",
        (
            *EXPORTED,
            argument(
                "inputs",
                nargs="+",
                metavar="INPUT",
                help=(
                    "image files, folders of image files, or .npy/.npz arrays. For a text model: text files, "
                    "folders of text files, .csv, .tsv and .jsonl files, .npy/.npz arrays of strings, or texts. A "
                    'line of a .jsonl file is a text or {"text": "…"}. - reads stdin: an image, or one instance per '
                    "line, as a text or as JSON in the format of the server"
                ),
            ),
            argument(
                "--output",
                type=user_path,
                metavar="FILE",
                help="predict every example of INPUT (a folder, a table or any source, for example csv:FILE) once, and "
                "write the predictions to a .jsonl or .parquet file. Run an interrupted command again to continue it. "
                "Unreadable examples are listed with the reason in a file next to it",
            ),
            flag("--lines", "files have one text per line"),
            argument("--column", default="text", metavar="NAME", help="column of a .csv or .tsv file (default: text)"),
            typed(
                "--columns",
                Mapping[str, str],
                "JSON",
                'with --output: columns of a table that have other names, for example {"path": "filename", "id": '
                '"customer"} (default: the columns of the training data)',
                default={},
            ),
            argument(
                "--keep",
                nargs="+",
                default=[],
                metavar="COLUMN",
                help="with --output: columns to copy to each prediction. The id is always copied",
            ),
            argument(
                "--top", type=int, default=3, metavar="K", help="number of classes to print per input (default: 3)"
            ),
            json_flag("print one JSON line per input"),
            flag("--int8", "use the int8 model"),
            headed(
                "language models",
                "INPUT is a text to continue, for example 'ROMEO:'",
                typed("--length", Positive, "N", "characters to write (default: 200)", default=200),
                typed(
                    "--temperature",
                    Amount,
                    "T",
                    "1 samples by the probabilities, a lower value prefers probable characters, 0 takes the most "
                    "probable (default: 0.8)",
                    default=0.8,
                ),
                typed("--seed", Seed, "N", "seed; equal seeds give equal texts (default: 0)", default=0),
            ),
        ),
    ),
    Command(
        "serve",
        "serve predictions over HTTP with an exported model",
        "Serve predictions over HTTP on a CPU with an exported model, with Vertex AI's protocol for custom "
        "containers. TensorFlow and training code are not needed. Stop the server with Ctrl-C.",
        "runs/digits --port 8080",
        "models.serve",
        (*EXPORTED, functools.partial(add_params, params=ServeParams)),
    ),
    Command(
        "verify",
        "verify the signatures of a registered version, or of an export",
        "Verify the signatures of a registered version, or of an export. They show that no file was changed or added "
        "after signing. The exit code is 2 if a file was changed or added, or if the signature is missing or was "
        "made with another key.",
        "digits@champion --key signing.pub",
        "models.verify",
        (
            *EXPORTED,
            argument("--key", required=True, metavar="FILE", help="the public key in PEM, local or on gs://"),
        ),
    ),
    Command(
        "registry",
        "list registered models, show one, promote one by hand or roll back",
        "list [NAME]: list the versions of every model, or of one model. show NAME [VERSION]: show all metadata of "
        "the champion, or of a version. promote NAME VERSION: make a registered version the champion, regardless of "
        "the gate; a rejected model is not registered. rollback NAME: return to the previous champion; later runs do "
        "not undo this.",
        "promote digits 0003 --reason 'tried by hand'",
        "registry.registry",
        (
            argument("action", choices=("list", "show", "promote", "rollback")),
            argument("name", nargs="?", default="", metavar="NAME", help="name of the model"),
            argument(
                "version", nargs="?", default="", metavar="VERSION", help="number of the version, for example 0001"
            ),
            WORKSPACE,
            argument(
                "--registry",
                type=user_path,
                metavar="DIR",
                help="folder of the registry (default: registry in --workspace)",
            ),
            argument("--reason", default="", metavar="TEXT", help="reason to record in the history"),
            argument(
                "--verify",
                metavar="FILE",
                help="promote a version only if its signatures are valid for this public key",
            ),
            json_flag(),
        ),
    ),
    Command(
        "preflight",
        "compile the training step for a TPU, without a TPU: memory, time and price",
        "Compile the training step on this machine with the real TPU compiler, which does not need a TPU. Report "
        "whether the step fits, the time of a step and an epoch, the price of a run, and how long the device waits "
        "for data.",
        "digits --compare v2-8,v5e-4",
        "steps.preflight",
        (
            argument(
                "config",
                metavar="CONFIG|STEP",
                help="a ready example or a YAML file; or a step: MODULE:FUNCTION of any function that jax.jit takes, "
                "or a StableHLO file (.mlir)",
            ),
            SET,
            argument(
                "--inputs",
                default="",
                metavar="SHAPES",
                help="shapes of a step's inputs, for example 'float32[1024,784], int32[1024]', or the MODULE:FUNCTION "
                "of a function that returns the inputs",
            ),
            argument(
                "--items",
                type=int,
                metavar="N",
                help="with a step: number of examples or tokens that it processes, to report the throughput and the "
                "price of a million of them",
            ),
            flag("--spot", "with a step: prices of spot machines"),
            either(
                argument(
                    "--machine",
                    metavar="NAME",
                    help="a TPU slice, for example v5e-4 (default: the configuration's machine and its fallbacks)",
                ),
                argument("--compare", metavar="NAME,NAME…", help="several TPU slices to compare side by side"),
            ),
            argument(
                "--target",
                type=targets,
                default=(default_platform().name,),
                metavar="NAME[,NAME]",
                help=f"platform whose prices apply: {', '.join(PLATFORMS)}, or several, side by side "
                f"(default: {default_platform().name})",
            ),
            argument(
                "--against",
                metavar="VERSION|REPORT",
                help=(
                    "fail if training is slower or more expensive than for a registered version "
                    f"({VERSION_FORMS}), or than on the first machine of a preflight.json"
                ),
            ),
            argument(
                "--examples",
                type=int,
                metavar="N",
                help="number of examples to estimate time and price for, if the available data are only a sample",
            ),
            argument(
                "--image-bytes",
                type=int,
                metavar="N",
                help="with --examples: size of an image file in bytes (default: size in the available data)",
            ),
            argument(
                "--quick",
                action="store_true",
                help=(
                    "report only whether the training step fits and how much memory it takes, without times and prices"
                ),
            ),
            limit("--slower", "slower an epoch may be"),
            limit("--dearer", "more expensive a run may be"),
            MARKDOWN,
            WORKSPACE,
            SETTINGS,
            json_flag("print the report, and nothing else, on stdout"),
        ),
    ),
    Command(
        "receipts",
        "base the intervals of preflight on the receipts of your own runs",
        "[list]: list the receipts that preflight uses, with predicted and measured figures, and the resulting "
        "intervals. add PLACE…: add receipts; a run that is already listed is not added again. Receipts do not contain "
        "weights, data, shapes, paths or names. Preflight then bases its intervals on these runs. The variable "
        "TPU_PIPELINES_RECEIPTS sets another folder for receipts, which may be in a bucket.",
        "add runs",
        "receipts.receipts",
        (
            argument(
                "action", nargs="?", default="list", choices=("list", "add"), metavar="list|add", help="(default: list)"
            ),
            argument(
                "places",
                nargs="*",
                metavar="PLACE",
                help="add: a receipt.json, or a folder or bucket that is searched for receipts",
            ),
            WORKSPACE,
            json_flag(),
        ),
    ),
    Command(
        "machines",
        "list the TPU machines that a configuration can name",
        "List the TPU slices and GPU machines of Vertex AI and GKE: fields, chips, prices and regions.",
        "--generation v5e",
        "machines.machines",
        (
            argument("--generation", default="", metavar="NAME", help="list only this generation, for example v5e"),
            argument(
                "--region", default="", metavar="NAME", help="list only slices in this region, for example us-west1"
            ),
            json_flag("print a JSON list, with the source of every value"),
        ),
    ),
    Command(
        "compile",
        "write the pipeline as a file for a cloud platform",
        "Write the pipeline as a file for a cloud platform, which trains on the machine of the configuration. No "
        "account is needed. The file contains the current settings, such as project, bucket and image.",
        "digits --target vertex --output digits.yaml",
        "platforms.write_pipeline",
        (
            *CONFIG,
            *target(is_required=True),
            argument("--output", type=user_path, required=True, metavar="FILE", help="file, for example pipeline.yaml"),
        ),
    ),
    Command(
        "submit",
        "run the pipeline on a cloud platform",
        "Compile the pipeline and start it on a cloud platform. A run is identified by its configuration, data and "
        "code. It is started only once, and a repeated command finds the existing run. If the machine is not "
        "available, the fallback machines are tried.",
        "digits --set machine=v5e-4 --wait",
        "platforms.submit",
        (
            *CONFIG,
            *target(),
            *WAIT,
            flag("--again", "start the run again if it has ended"),
            NO_DOCTOR,
            flag("--dry-run", "describe the run without submitting it"),
            argument("--output", type=output_file, metavar="FILE", help="with --dry-run: write the request as JSON"),
            json_flag("print the run, or with --dry-run the request, as JSON, and nothing else, on stdout"),
        ),
    ),
    Command(
        "status",
        "show the state of a run on a cloud platform",
        "Show the state of the latest run with this name. The exit codes are the same as for `submit --wait`.",
        "digits",
        "jobs.status",
        (JOB, *target(), json_flag("print the run as JSON, and nothing else, on stdout")),
    ),
    Command(
        "cancel",
        "stop a run on a cloud platform",
        "Stop the latest run with this name.",
        "digits",
        "jobs.cancel",
        (JOB, *target()),
    ),
    Command(
        "schedule",
        "run the pipeline on a cloud platform on a schedule",
        "Create or change the schedule of a configuration, and print the changes. Each name has one schedule. The "
        "platform starts its runs on the configuration's machine, without fallbacks.",
        "digits --cron '0 3 * * *'",
        "platforms.schedule",
        (
            *CONFIG,
            either(
                argument(
                    "--cron", metavar="EXPRESSION", help="for example '0 3 * * *' or 'TZ=Europe/Berlin 0 3 * * 1-5'"
                ),
                *(
                    argument(f"--{action}", action="store_const", const=action, dest="action", help=text)
                    for action, text in (
                        ("pause", "start no further runs until --resume"),
                        ("resume", "start runs again"),
                        ("delete", "delete the schedule"),
                    )
                ),
                is_required=True,
            ),
            *target(),
            NO_DOCTOR,
            flag("--dry-run", "print the changes without making them"),
        ),
    ),
    Command(
        "retrain",
        "run the pipeline again if something has changed: for CI",
        "Run the pipeline if its data, configuration or code have changed since the last run with its name, and "
        "print what has changed. An unchanged run is not repeated, unless it failed. You can call the command at any "
        "time, even after it was killed. On a platform, concurrent calls start only one run. Every decision is "
        "stored in the registry's folder or, if there is no registry, in the bucket or workspace.",
        "digits --target local --when changed,older-than=30d",
        "retraining.retrain",
        (
            *CONFIG,
            *target(is_here_too=True),
            WORKSPACE,
            *WAIT,
            argument(
                "--when",
                metavar="CONDITIONS",
                help="conditions, separated by commas: changed, drifted (from the champion's data), older-than=30d "
                "(or 12h), always (default: changed)",
            ),
            either(
                flag("--dry-run", "print whether a run is needed and why, without starting it"),
                flag("--history", "list earlier decisions and the outcomes of their runs"),
            ),
            NO_DOCTOR,
            flag("--force", "run every step, even if nothing has changed"),
            argument("--output", type=output_file, metavar="FILE", help="page of --history, for example retrain.html"),
            MARKDOWN,
            argument("--junit", type=output_file, metavar="FILE", help="write the gate's rules as JUnit XML"),
            argument(
                "--outputs",
                type=added_to,
                metavar="FILE",
                help="append needed=, outcome=, run= and version= to a file, for example $GITHUB_OUTPUT",
            ),
            json_flag(),
        ),
    ),
    Command(
        "doctor",
        "check that a cloud platform has everything that a run needs",
        "Check, with read-only requests, that a cloud platform has everything that a run of the configuration needs. "
        "The results are ok; error, if something is missing; hint, if something should be changed; and unknown, if "
        "the platform does not provide the information. Errors and hints say what to do, and give exit code 2.",
        "digits --target vertex",
        "platforms.doctor",
        (
            *CONFIG,
            *target(),
            argument(
                "--kube-context",
                default="",
                metavar="NAME",
                help="kubeflow: also check the cluster, with this kubectl context",
            ),
            argument(
                "--script",
                type=user_path,
                metavar="FILE",
                help="write a shell script that creates and grants what is missing",
            ),
            json_flag("print a JSON list, and nothing else, on stdout"),
        ),
    ),
    Command(
        "completion",
        "print a script for command completion in your shell",
        "Print a script with which a shell completes commands, flags, ready examples and files. Bash: eval "
        '"$(tpu-pipelines completion bash)" in ~/.bashrc. Zsh: write the output of tpu-pipelines completion zsh to a '
        "file _tpu-pipelines in a folder of $fpath.",
        "bash",
        "editors.completion",
        (argument("shell", choices=("bash", "zsh", "tcsh"), metavar="SHELL", help="bash, zsh or tcsh"),),
    ),
)
