"""KFP components that write records in one step, in parallel steps or with Beam, and a component that lists a source.

`python -m tests.evidence.generated` writes the inputs after `*`, and their entries in `Args:`, from the fields of
WriteParams.
"""

from typing import Any, Dict, List

from kfp import dsl

from tpu_components.core.base.container_images import LOCAL_BEAM_IMAGE, LOCAL_IMAGE, in_place_of_shell


@in_place_of_shell
@dsl.component(base_image=LOCAL_IMAGE, install_kfp_package=False)
def create_tfrecords(
    records: dsl.Output[dsl.Dataset],
    data_version: str = "",
    fingerprint: Dict[str, str] = {},
    *,
    source: str,
    task: str = "classification",
    target_columns: List[str] = [],
    validation_fraction: float = 0.1,
    test_fraction: float = 0.2,
    stratify: bool = True,
    group_column: str = "",
    slice_columns: List[str] = [],
    columns: Dict[str, str] = {},
    split_files: Dict[str, str] = {},
    rewrite: bool = True,
    join_copies: bool = True,
    retired_tests: List[str] = [],
    seed: int = 0,
    image_size: List[int] = [],
    channels: int = 0,
    apply_rotation: bool = True,
    convert_arrays: bool = True,
    encoding: str = "auto",
    jpeg_quality: int = 92,
    crop_margin: float = 0.0,
    vocabulary_size: int = 15000,
    num_tokens: int = 250,
    tokenization: str = "words_and_characters",
    truncate: str = "start",
    context_tokens: int = 0,
    class_names: List[str] = [],
    target_shard_mib: int = 32,
    max_bad_fraction: float = 0.0,
    num_workers: int = 0,
    engine: str = "local",
    engine_tasks: int = 8,
    beam_options: Dict[str, str] = {},
) -> int:
    """Write labelled examples as sharded TFRecord files. Return the number of examples.

    Args:
        data_version: Digest of the source's content, from list_source. The step fails if the content has changed since
            list_source ran. If empty, any content is accepted.
        fingerprint: Digest of the step's `code`. The step does not read it; the platform's cache runs the step again
            when it changes.
        source: Kind and place of the data, for example `images:DIR`, `csv:FILE` or `sklearn:digits`. The README of
            create_tfrecords lists all kinds. Paths may be gs:// or s3://.
        task: Task of the model: `classification` (one class of several), `multi_label` (any number of several) or
            `regression` (one number or several). `multi_label` and `regression` require a csv:, npz:, parquet:,
            huggingface: or tfrecords: source; labelstudio: and cvat: also support `multi_label`. The task of a corpus:
            source is `language_model`.
        target_columns: Columns that contain the target numbers of a regression. Empty means the column `label`. The
            targets in an npz: source have no names, so they get these names; empty then means `target` or, for several
            targets, `target_0`, `target_1` and so on.
        validation_fraction: Share of the examples to hold out for validation, if the source has no validation split.
        test_fraction: Share of the examples to hold out for testing, if the source has no test split.
        stratify: Put every class in every split. If a split has no example of a class, one example of this class moves
            there from another split: the one whose hash is nearest to that split's range of hashes. When you add data,
            examples of these small classes may move again, but all other examples keep their splits. Applies only to
            classification, and has no effect with `group_column`.
        group_column: A CSV column or a data field of Label Studio. Examples with the same value form a group, and stay
            in one split. If there are few groups, they are assigned so that the sizes of the splits are as close as
            possible to the fractions.
        slice_columns: CSV columns or data fields of Label Studio that define slices, for example `site`. With
            `gate.slices`, the gate judges the examples of each value separately. Models do not get these columns.
        columns: The names in your data, if they differ from the standard names `path` (for tables of image files),
            `image`, `text`, `label`, `split` and `id`. For example, {"path": "filename"} means that the column
            `filename` contains the paths. Applies to columns of CSV and Parquet files, features of TFRecord files, and
            JSON fields of WebDataset and Label Studio. Common names such as `review` and `sentiment` are detected. An
            entry such as {"weight": "confidence"} multiplies the training loss of each example by its value in the
            column `confidence`. Metrics are not weighted.
        split_files: Pattern of the file names of each split, such as {"train": "mnist-train*", "test": "mnist-test*"},
            if the file names do not begin with the name of the split. Only for TFRecord, Parquet and WebDataset files.
        rewrite: Write the examples as new records. If false, the records of a tfrecords: source are checked and used in
            place, and `dataset.json` refers to them. In this case, labels must already be stored in the form that
            training reads, and `class_names` contains the names of the labels 0, 1 and so on.
        join_copies: In splits that are drawn by hash, treat exact and near copies as one example: copies of test
            examples are left out of training and validation, and copies of validation examples out of training.
        retired_tests: Files `REGISTRY/MODEL/tests/…/examples.npy` of test sets that were used for too many gate
            decisions. The gate prints these paths. The examples of these test sets are left out of every split, so the
            new test set has only newer examples.
        seed: Seed of the split and of the order in which examples are stored.
        image_size: Size to which images are resized: [height, width], or one number for both. Empty means that all
            images must already have the same size.
        channels: Number of channels. 1 converts all images to grey, and 3 converts them to colour. 0 means the number
            of channels of the first image, which all other images must have as well.
        apply_rotation: Rotate photos by their EXIF orientation, in the records and for predictions.
        convert_arrays: Also accept arrays with channels first, floats in [0, 1] or one-hot classes, and convert them.
            The log names each conversion.
        encoding: `raw` stores pixels, `resized` stores JPEG files of image_size, and `encoded` stores the original
            image files. `auto` is `raw` for arrays and for images up to 64×64×3, `resized` if photos are more than a
            tenth larger than image_size, and otherwise `encoded`.
        jpeg_quality: Quality of `resized` images, from 1 to 100.
        crop_margin: Fraction by which stored `resized` images are larger than `image_size`, so that random crops in
            training contain only real pixels. Evaluation and serving use the centre of the images.
        vocabulary_size: Number of token IDs for texts, including the IDs for padding and unknown words. The other IDs
            are for the most frequent words of the training split.
        num_tokens: Length in words to which all texts are cut or padded. For a corpus: source, the number of characters
            in a passage.
        tokenization: Rule that splits texts into words. `words_and_characters`: Unicode spaces and punctuation separate
            words, and each letter of a script without spaces, such as Chinese or Thai, counts as a word.
            `unicode_words`: like `words_and_characters`, but letters of these scripts also form words, for texts whose
            words are already separated by spaces. `words`: the rule from earlier versions, in which only ASCII
            characters separate words and only ASCII capitals become lower case.
        truncate: Side on which texts are cut and padded, `start` or `end`. `start` keeps the last words.
        context_tokens: Number of characters by which validation and test passages of a corpus overlap: a passage begins
            with the last characters of the preceding passage. These characters are context, and are scored only in the
            preceding passage. With 0, nothing precedes a passage, so its first characters have little context.
        class_names: The classes, in order. Empty means all classes in the data, sorted. Names are compared in Unicode
            NFC, and `1.0` is the class `1`. With folders, only the folders that are listed here are used. With integer
            labels in arrays, entry i is the name of label i, unless the list contains every number that occurs as a
            label. With a multi-label npz: source, entry i is the name of column i, and empty means that the column
            numbers are the names.
        target_shard_mib: Target size of a shard, in MiB.
        max_bad_fraction: Largest share of inputs that may be unreadable or lack a label, split or weight. These inputs
            are quarantined and listed in the manifest.
        num_workers: Number of processes. 0 means one per available CPU.
        engine: How a pipeline writes records: `local` in one step, `fan_out` in `engine_tasks` parallel steps and a
            merge step, or `beam` in an Apache Beam job. All engines write the same bytes. The command of the step
            always works like `local`; `create_tfrecords.engines` has commands for the other engines.
        engine_tasks: With `fan_out`, the number of parallel steps, at most 90 on Vertex AI. With `beam`, the number of
            work items.
        beam_options: Options of the Beam pipeline by Beam's names, for example `runner`, `region`,
            `worker_machine_type` and `max_num_workers`. For an option that takes no value, write "". Parts of the data
            set are stored below `temp_location`, which must be in a bucket if `runner` uses other machines.

    Returns:
        records: Written records: TFRecord shards, `dataset.json` and the page `data.html`.
        Output: Number of examples.
    """
    inputs = dict(locals())
    from tpu_components.core.component.step_record import run_component
    from tpu_components.create_tfrecords import WriteParams, write_records

    return run_component(
        "create_tfrecords",
        lambda params, records: write_records(params, records, data_version),
        WriteParams,
        inputs,
        "records",
    ).num_examples


@in_place_of_shell
@dsl.component(base_image=LOCAL_IMAGE, install_kfp_package=False)
def list_source(
    *,
    source: str,
    task: str = "classification",
    target_columns: List[str] = [],
    validation_fraction: float = 0.1,
    test_fraction: float = 0.2,
    stratify: bool = True,
    group_column: str = "",
    slice_columns: List[str] = [],
    columns: Dict[str, str] = {},
    split_files: Dict[str, str] = {},
    rewrite: bool = True,
    join_copies: bool = True,
    retired_tests: List[str] = [],
    seed: int = 0,
    image_size: List[int] = [],
    channels: int = 0,
    apply_rotation: bool = True,
    convert_arrays: bool = True,
    encoding: str = "auto",
    jpeg_quality: int = 92,
    crop_margin: float = 0.0,
    vocabulary_size: int = 15000,
    num_tokens: int = 250,
    tokenization: str = "words_and_characters",
    truncate: str = "start",
    context_tokens: int = 0,
    class_names: List[str] = [],
    target_shard_mib: int = 32,
    max_bad_fraction: float = 0.0,
    num_workers: int = 0,
    engine: str = "local",
    engine_tasks: int = 8,
    beam_options: Dict[str, str] = {},
) -> str:
    """List the source of create_tfrecords, with the same inputs. Return a digest of the source's current content.

    This step always runs, because a platform's cache identifies data only by their path. The digest is an input of the
    next step, so that the cache detects changed data.

    Args:
        source: Kind and place of the data, for example `images:DIR`, `csv:FILE` or `sklearn:digits`. The README of
            create_tfrecords lists all kinds. Paths may be gs:// or s3://.
        task: Task of the model: `classification` (one class of several), `multi_label` (any number of several) or
            `regression` (one number or several). `multi_label` and `regression` require a csv:, npz:, parquet:,
            huggingface: or tfrecords: source; labelstudio: and cvat: also support `multi_label`. The task of a corpus:
            source is `language_model`.
        target_columns: Columns that contain the target numbers of a regression. Empty means the column `label`. The
            targets in an npz: source have no names, so they get these names; empty then means `target` or, for several
            targets, `target_0`, `target_1` and so on.
        validation_fraction: Share of the examples to hold out for validation, if the source has no validation split.
        test_fraction: Share of the examples to hold out for testing, if the source has no test split.
        stratify: Put every class in every split. If a split has no example of a class, one example of this class moves
            there from another split: the one whose hash is nearest to that split's range of hashes. When you add data,
            examples of these small classes may move again, but all other examples keep their splits. Applies only to
            classification, and has no effect with `group_column`.
        group_column: A CSV column or a data field of Label Studio. Examples with the same value form a group, and stay
            in one split. If there are few groups, they are assigned so that the sizes of the splits are as close as
            possible to the fractions.
        slice_columns: CSV columns or data fields of Label Studio that define slices, for example `site`. With
            `gate.slices`, the gate judges the examples of each value separately. Models do not get these columns.
        columns: The names in your data, if they differ from the standard names `path` (for tables of image files),
            `image`, `text`, `label`, `split` and `id`. For example, {"path": "filename"} means that the column
            `filename` contains the paths. Applies to columns of CSV and Parquet files, features of TFRecord files, and
            JSON fields of WebDataset and Label Studio. Common names such as `review` and `sentiment` are detected. An
            entry such as {"weight": "confidence"} multiplies the training loss of each example by its value in the
            column `confidence`. Metrics are not weighted.
        split_files: Pattern of the file names of each split, such as {"train": "mnist-train*", "test": "mnist-test*"},
            if the file names do not begin with the name of the split. Only for TFRecord, Parquet and WebDataset files.
        rewrite: Write the examples as new records. If false, the records of a tfrecords: source are checked and used in
            place, and `dataset.json` refers to them. In this case, labels must already be stored in the form that
            training reads, and `class_names` contains the names of the labels 0, 1 and so on.
        join_copies: In splits that are drawn by hash, treat exact and near copies as one example: copies of test
            examples are left out of training and validation, and copies of validation examples out of training.
        retired_tests: Files `REGISTRY/MODEL/tests/…/examples.npy` of test sets that were used for too many gate
            decisions. The gate prints these paths. The examples of these test sets are left out of every split, so the
            new test set has only newer examples.
        seed: Seed of the split and of the order in which examples are stored.
        image_size: Size to which images are resized: [height, width], or one number for both. Empty means that all
            images must already have the same size.
        channels: Number of channels. 1 converts all images to grey, and 3 converts them to colour. 0 means the number
            of channels of the first image, which all other images must have as well.
        apply_rotation: Rotate photos by their EXIF orientation, in the records and for predictions.
        convert_arrays: Also accept arrays with channels first, floats in [0, 1] or one-hot classes, and convert them.
            The log names each conversion.
        encoding: `raw` stores pixels, `resized` stores JPEG files of image_size, and `encoded` stores the original
            image files. `auto` is `raw` for arrays and for images up to 64×64×3, `resized` if photos are more than a
            tenth larger than image_size, and otherwise `encoded`.
        jpeg_quality: Quality of `resized` images, from 1 to 100.
        crop_margin: Fraction by which stored `resized` images are larger than `image_size`, so that random crops in
            training contain only real pixels. Evaluation and serving use the centre of the images.
        vocabulary_size: Number of token IDs for texts, including the IDs for padding and unknown words. The other IDs
            are for the most frequent words of the training split.
        num_tokens: Length in words to which all texts are cut or padded. For a corpus: source, the number of characters
            in a passage.
        tokenization: Rule that splits texts into words. `words_and_characters`: Unicode spaces and punctuation separate
            words, and each letter of a script without spaces, such as Chinese or Thai, counts as a word.
            `unicode_words`: like `words_and_characters`, but letters of these scripts also form words, for texts whose
            words are already separated by spaces. `words`: the rule from earlier versions, in which only ASCII
            characters separate words and only ASCII capitals become lower case.
        truncate: Side on which texts are cut and padded, `start` or `end`. `start` keeps the last words.
        context_tokens: Number of characters by which validation and test passages of a corpus overlap: a passage begins
            with the last characters of the preceding passage. These characters are context, and are scored only in the
            preceding passage. With 0, nothing precedes a passage, so its first characters have little context.
        class_names: The classes, in order. Empty means all classes in the data, sorted. Names are compared in Unicode
            NFC, and `1.0` is the class `1`. With folders, only the folders that are listed here are used. With integer
            labels in arrays, entry i is the name of label i, unless the list contains every number that occurs as a
            label. With a multi-label npz: source, entry i is the name of column i, and empty means that the column
            numbers are the names.
        target_shard_mib: Target size of a shard, in MiB.
        max_bad_fraction: Largest share of inputs that may be unreadable or lack a label, split or weight. These inputs
            are quarantined and listed in the manifest.
        num_workers: Number of processes. 0 means one per available CPU.
        engine: How a pipeline writes records: `local` in one step, `fan_out` in `engine_tasks` parallel steps and a
            merge step, or `beam` in an Apache Beam job. All engines write the same bytes. The command of the step
            always works like `local`; `create_tfrecords.engines` has commands for the other engines.
        engine_tasks: With `fan_out`, the number of parallel steps, at most 90 on Vertex AI. With `beam`, the number of
            work items.
        beam_options: Options of the Beam pipeline by Beam's names, for example `runner`, `region`,
            `worker_machine_type` and `max_num_workers`. For an option that takes no value, write "". Parts of the data
            set are stored below `temp_location`, which must be in a bucket if `runner` uses other machines.

    Returns:
        Output: Digest of the source's current content.
    """
    inputs = dict(locals())
    from tpu_components.core.base.termination import heard
    from tpu_components.core.component.step_inputs import params_from
    from tpu_components.create_tfrecords import WriteParams, source_version

    with heard():
        return source_version(params_from(inputs, WriteParams))


@in_place_of_shell
@dsl.component(base_image=LOCAL_IMAGE, install_kfp_package=False)
def plan_parts(
    planned: dsl.Output[dsl.Artifact],
    source: str,
    data: Dict[str, Any] = {},
    data_version: str = "",
    fingerprint: Dict[str, str] = {},
) -> int:
    """Plan a data set that several steps write. Return the number of its parts.

    Args:
        source: Kind and place of the data, as in create_tfrecords.
        data: Other inputs of create_tfrecords by name, such as {"image_size": [8, 8]}. Inputs that are left out have
            their defaults.
        data_version: Digest of the source's content, from list_source. The step fails if the content has changed since
            list_source ran. If empty, any content is accepted.
        fingerprint: Digest of the step's `code`. The step does not read it; the platform's cache runs the step again
            when it changes.

    Returns:
        planned: Plan of the data set and of its parts.
        Output: Number of parts.
    """
    inputs = {**data, **locals()}
    from tpu_components.core.component.step_record import run_component
    from tpu_components.create_tfrecords import WriteParams
    from tpu_components.create_tfrecords.engines import fan_out

    return run_component(
        "create_tfrecords",
        lambda params, planned: fan_out.plan_parts(params, str(planned), data_version),
        WriteParams,
        inputs,
        "planned",
        then=lambda plan: plan.num_parts,
    )


@in_place_of_shell
@dsl.component(base_image=LOCAL_IMAGE, install_kfp_package=False)
def write_parts(
    planned: dsl.Input[dsl.Artifact],
    parts: dsl.Output[dsl.Artifact],
    number: int,
    source: str,
    data: Dict[str, Any] = {},
    data_version: str = "",
    fingerprint: Dict[str, str] = {},
) -> int:
    """Write one range of the planned parts. Return the number of parts in the range.

    Args:
        planned: Plan that plan_parts wrote.
        number: Number of the range, from 0.
        source: Kind and place of the data, as in create_tfrecords.
        data: Other inputs of create_tfrecords by name, such as {"image_size": [8, 8]}. Inputs that are left out have
            their defaults.
        data_version: Digest of the source's content, from list_source. The step does not read it; the platform's cache
            runs the step again when it changes.
        fingerprint: Digest of the step's `code`. The step does not read it; the platform's cache runs the step again
            when it changes.

    Returns:
        parts: Written parts of the range.
        Output: Number of parts in the range.
    """
    inputs = {**data, **locals()}
    from tpu_components.core.component.step_record import run_component
    from tpu_components.create_tfrecords import WriteParams
    from tpu_components.create_tfrecords.engines import fan_out

    return run_component(
        "create_tfrecords",
        lambda params, planned, parts: fan_out.write_parts(params, str(planned), str(parts), int(number)),
        WriteParams,
        inputs,
        "planned",
        "parts",
        then=lambda written: written.num_parts,
    )


@in_place_of_shell
@dsl.component(base_image=LOCAL_IMAGE, install_kfp_package=False)
def merge_parts(
    planned: dsl.Input[dsl.Artifact],
    parts: dsl.Input[List[dsl.Artifact]],
    records: dsl.Output[dsl.Dataset],
    source: str,
    data: Dict[str, Any] = {},
    data_version: str = "",
    fingerprint: Dict[str, str] = {},
) -> int:
    """Merge the parts of all ranges into records. Return the number of examples.

    Args:
        planned: Plan that plan_parts wrote.
        parts: Parts of all ranges that write_parts wrote.
        source: Kind and place of the data, as in create_tfrecords.
        data: Other inputs of create_tfrecords by name, such as {"image_size": [8, 8]}. Inputs that are left out have
            their defaults.
        data_version: Digest of the source's content, from list_source. The step does not read it; the platform's cache
            runs the step again when it changes.
        fingerprint: Digest of the step's `code`. The step does not read it; the platform's cache runs the step again
            when it changes.

    Returns:
        records: Written records: TFRecord shards, `dataset.json` and the page `data.html`.
        Output: Number of examples.
    """
    inputs = {**data, **locals()}
    from tpu_components.core.component.step_record import run_component
    from tpu_components.create_tfrecords import WriteParams
    from tpu_components.create_tfrecords.engines import fan_out

    return run_component(
        "create_tfrecords",
        lambda params, planned, parts, records: fan_out.merge_parts(params, str(planned), [*map(str, parts)], records),
        WriteParams,
        inputs,
        "planned",
        "parts",
        "records",
    ).num_examples


@in_place_of_shell
@dsl.component(base_image=LOCAL_BEAM_IMAGE, install_kfp_package=False)
def write_with_beam(
    records: dsl.Output[dsl.Dataset],
    source: str,
    data: Dict[str, Any] = {},
    data_version: str = "",
    fingerprint: Dict[str, str] = {},
) -> int:
    """Write records with the workers of an Apache Beam runner. Return the number of examples.

    Args:
        source: Kind and place of the data, as in create_tfrecords.
        data: Other inputs of create_tfrecords by name, such as {"image_size": [8, 8]}. Inputs that are left out have
            their defaults.
        data_version: Digest of the source's content, from list_source. The step fails if the content has changed since
            list_source ran. If empty, any content is accepted.
        fingerprint: Digest of the step's `code`. The step does not read it; the platform's cache runs the step again
            when it changes.

    Returns:
        records: Written records: TFRecord shards, `dataset.json` and the page `data.html`.
        Output: Number of examples.
    """
    inputs = {**data, **locals()}
    from tpu_components.core.component.step_record import run_component
    from tpu_components.create_tfrecords import WriteParams
    from tpu_components.create_tfrecords.engines import beam

    return run_component(
        "create_tfrecords",
        lambda params, records: beam.write_with_beam(params, records, data_version),
        WriteParams,
        inputs,
        "records",
    ).num_examples


# These steps write the same records, so the pipeline and its cache know them by the same name.
merge_parts.component_spec.name = create_tfrecords.component_spec.name
write_with_beam.component_spec.name = create_tfrecords.component_spec.name
