"""Components that check their inputs when a pipeline is defined.

They also warn of mistakes that would otherwise show only when the pipeline runs.
"""

import dataclasses
import os
import re
import typing
import warnings
from collections.abc import Collection, Mapping
from typing import Any, Self

from kfp import local
from kfp.dsl import pipeline_channel
from kfp.dsl.pipeline_context import Pipeline
from kfp.dsl.pipeline_task import PipelineTask
from kfp.dsl.python_component import PythonComponent
from kfp.dsl.types import type_utils

from tpu_components.core.base.container_images import LOCAL_BEAM_IMAGE, LOCAL_IMAGE
from tpu_components.core.base.errors import InputError
from tpu_components.core.base.formatting import quoted
from tpu_components.core.base.typed_values import as_json, fields_of, read_some, unknown_key, with_new_names
from tpu_components.core.component.step_inputs import params_from
from tpu_components.core.files.location import Location
from tpu_components.core.models.bundle import is_reference
from tpu_components.core.models.lookup import check_model
from tpu_components.core.sources.kinds import check_source, location_of
from tpu_components.core.sources.params import WriteParams
from tpu_components.core.sources.source_ref import SourceRef
from tpu_components.evaluate_model.params import RULES, Bound, EvaluateParams, find_suspects
from tpu_components.kfp.wrapped_component import called, require_names

# Stand-ins for required inputs whose values are not known yet, so that rules about the other inputs can be checked.
_STAND_INS = {"source": "sklearn:digits", "model": "digits_cnn"}
_READY_MODEL = re.compile(r"[\w-]+")  # Other names are files or modules, which only the image has.


class PipelineWarning(UserWarning):
    """Warns that a pipeline compiles, but may not do what you expect when it runs."""


class StaleCacheWarning(PipelineWarning):
    """Warns that the platform's cache may return outdated results after the data or the code has changed."""


class StepComponent(PythonComponent):
    """A component of this package that checks its inputs in a pipeline.

    Inputs that are constants are checked and converted to KFP's types.

    Attributes:
        params: Dataclass whose fields are inputs of the component, with the rules for these inputs. None if the
            component has no such dataclass.
    """

    params: type | None = None

    @classmethod
    def from_component(cls, component: PythonComponent, params: type | None = None) -> Self:
        """Return a copy of a component. The copy checks its inputs by the rules of the dataclass `params`."""
        made = cls(component.component_spec, component.python_func)
        made.params = params
        return made

    def __call__(self, *args: Any, **inputs: Any) -> Any:
        """Check the inputs, warn of likely mistakes, and return the task.

        Raises:
            InputError: If constant inputs are wrong, or an input is unknown.
        """
        require_names(self, args)
        checked = self.checked(inputs)
        if Pipeline.get_default_pipeline() is not None:
            self._warn_of_image()
            self._warn_of_cache(checked)
            self._warn_of_metrics(checked)
            self._warn_of_files(checked)
        return super().__call__(**checked)

    def checked(self, inputs: Mapping[str, Any], others: Collection[str] = ()) -> dict[str, Any]:
        """Check the inputs of a task, and return them in the form that KFP takes.

        In the result, constants have KFP's types, and inputs that were renamed in a later version have their new names.

        An input whose value is known only when the pipeline runs is not checked. Rules about several inputs are checked
        if all of these inputs are constants.

        Args:
            inputs: The inputs by name.
            others: Names of further inputs that are accepted, such as those that `tp.on_machine` adds.

        Raises:
            InputError: If an input is unknown or missing, or if constants are wrong.
        """
        name = called(self)
        try:
            values = dict(with_new_names(inputs, self.params) if self.params else inputs)
            known = {*(self.component_spec.inputs or {}), *others}
            if strange := [each for each in values if each not in known]:
                raise InputError(unknown_key(strange[0], known, "the inputs"))
            self._check_complete(values)
            fields = fields_of(self.params) if self.params else {}
            for each, value in values.items():
                _check_value(each, value, fields[each].kind if each in fields else Any)
            return values | _checked(values, self.params) if self.params else values
        except InputError as error:  # A text may contain outputs of tasks, as KFP writes them.
            message = re.sub(r"\{\{channel:.*?\}\}", "{…}", str(error))
            raise InputError(f"Cannot use {name}: {message}") from error

    def _check_complete(self, inputs: Mapping[str, Any]) -> None:
        required = [name for name, each in (self.component_spec.inputs or {}).items() if not each.optional]
        if missing := [name for name in required if name not in inputs]:
            raise InputError(f"expected the input {missing[0]}, received {quoted(list(inputs)) or 'none'}. Add it.")

    def _warn_of_image(self) -> None:
        image = self.component_spec.implementation.container.image
        if image in (LOCAL_IMAGE, LOCAL_BEAM_IMAGE) and not runs_here():
            name = called(self)
            warnings.warn(
                f"{name} has the image {image!r}, which exists only on the machine that built it, so platforms cannot "
                f'run it. Use with_images("REGISTRY/NAME@sha256:…").{name}. To run the pipeline with kfp.local '
                "instead, call kfp.local.init before you define it.",
                PipelineWarning,
                stacklevel=3,
            )

    def _warn_of_cache(self, inputs: Mapping[str, Any]) -> None:
        is_cached_by_version = {"source", "data_version"} <= (self.component_spec.inputs or {}).keys()
        if is_cached_by_version and not inputs.get("data_version") and may_change(inputs.get("source")):
            name = called(self)
            warnings.warn(
                f"{name} has no data_version, and the platform's cache knows the data only by their location: after "
                f"the data have changed, a run may return the results of the old data. Use on_current_data({name}), or "
                "call set_caching_options(False) on the task.",
                StaleCacheWarning,
                stacklevel=3,
            )

    def _warn_of_metrics(self, inputs: Mapping[str, Any]) -> None:
        if self.params is not EvaluateParams:
            return
        rules = [inputs[name] for name in RULES if isinstance(inputs.get(name), Mapping)]
        metrics = [metric for rule in rules for metric in rule]
        for metric, near in find_suspects(metrics).items():
            warnings.warn(
                f"{metric!r} in the gate's rules is not a metric that this package measures. If it is not a metric of "
                f"your own in training.metrics, the task fails when it runs. Did you mean {near!r}?",
                PipelineWarning,
                stacklevel=3,
            )

    def _warn_of_files(self, inputs: Mapping[str, Any]) -> None:
        """Warn of data and models that are on this machine, where containers of a platform cannot read them."""
        if runs_here():
            return
        source = inputs.get("source")
        model = inputs.get("model")
        places = {
            "source": location_of(SourceRef.parse(source)) if isinstance(source, str) and is_constant(source) else "",
            "model": model if isinstance(model, str) and not _READY_MODEL.fullmatch(model) else "",
        }
        for name, place in places.items():
            if place and os.path.exists(place):
                advice = "Copy it into the image under another path."
                if name == "source":
                    advice = "Copy it to a bucket, or into the image under another path."
                warnings.warn(
                    f"{called(self)} has {name}={inputs[name]!r}, which is on this machine, where the containers of a "
                    f"platform cannot read it. {advice}",
                    PipelineWarning,
                    stacklevel=3,
                )


def runs_here() -> bool:
    """Return whether this process runs pipelines with kfp.local, that is, whether it has called `kfp.local.init`."""
    return local.config.LocalExecutionConfig.instance is not None


def may_change(source: Any) -> bool:
    """Return whether the content of a source may change between runs of a pipeline.

    This is assumed for a source in a remote store, and for an input whose value is known only when the pipeline runs.

    Raises:
        InputError: If the kind of the source is unknown.

    Example:
        >>> may_change("images:gs://bucket/photos"), may_change("sklearn:digits")
        (True, False)
    """
    if isinstance(source, str):
        return location_of(SourceRef.parse(source)).is_remote
    return source is not None


def is_constant(value: Any) -> bool:
    """Return whether a value, with all items of lists and mappings, is known when the pipeline is defined.

    Example:
        >>> is_constant({"image_size": [8, 8]}), is_constant(None)
        (True, False)
    """
    if isinstance(value, Mapping):
        return all(map(is_constant, value.values()))
    if isinstance(value, list | tuple):
        return all(map(is_constant, value))
    # A text may contain placeholders of KFP, such as that of an input in an f-string.
    return "{{" not in value if isinstance(value, str) else isinstance(value, int | float)


def _check_value(name: str, value: Any, kind: Any) -> None:
    """Check that an input has a value that KFP can pass to the step.

    Args:
        name: Name of the input.
        value: Value that the pipeline passes to the component.
        kind: Type of the step's parameter, or `Any`.

    Raises:
        InputError: If the value is None or a task, or has a part that the step could not read.
    """
    if isinstance(value, PipelineTask):
        raise InputError(
            f"expected a value for {name}, received the task {value.name!r}. Pass one of its outputs: "
            f'.outputs["{next(iter(value.outputs), "NAME")}"].'
        )
    if value is None:
        raise InputError(f"{name} cannot be None. Leave {name} out, or pass a value.")
    if isinstance(value, Mapping | list | tuple):
        _check_nested(name, value, kind)


def _check_nested(where: str, value: Any, kind: Any) -> None:
    """Check the parts of a mapping or list whose values are known only when the pipeline runs.

    KFP passes these parts as text. A step converts the text to a number or a boolean if the type of its parameter says
    so. kfp.local cannot read a mapping with the text of a list (kfp/local/placeholder_utils.py, at 2.17).

    Args:
        where: Name of the value.
        value: The value, or a part of it.
        kind: Type of the step's parameter, or `Any`.

    Raises:
        InputError: If the step would receive a text instead of a value of another type.
    """
    origin, items = typing.get_origin(kind), typing.get_args(kind)
    if isinstance(value, Mapping):
        if strange := [key for key in value if not isinstance(key, str)]:
            raise InputError(
                f"expected strings as the keys of {where}, received {strange[0]!r}. Use constant strings as keys."
            )
        fields = fields_of(typing.cast(type, kind)) if dataclasses.is_dataclass(kind) else {}
        for key, part in value.items():
            inner = fields[key].kind if key in fields else items[1] if origin is Mapping else Any
            _check_nested(f"{where}[{key!r}]", part, inner)
    elif isinstance(value, list | tuple):
        for part in value:
            _check_nested(where, part, items[0] if origin is tuple else Any)
    elif isinstance(value, pipeline_channel.PipelineParameterChannel):
        name = type_utils.get_parameter_type_name(value.channel_type)
        if name in ("LIST", "STRUCT") or (kind is Any and name != "STRING"):
            raise InputError(
                f"expected a constant for {where}, received {value.name!r}, whose value is known only when the "
                "pipeline runs. Inside a mapping or list, KFP would pass the value as a string. Use one input of the "
                f"pipeline for the whole of {where.partition('[')[0]}."
            )


def _checked(inputs: Mapping[str, Any], params: type) -> dict[str, Any]:
    """Return the constants among the inputs, in KFP's types.

    Raises:
        InputError: If constants are wrong; the message names all of them.
    """
    fields = fields_of(params)
    received = {name: value for name, value in inputs.items() if name in fields}
    constants = {name: value for name, value in received.items() if is_constant(value)}
    for name, value in received.items():
        if fields[name].kind == Mapping[str, Bound] and isinstance(value, Mapping):  # The names are always known.
            constants[name] = {key: part if is_constant(part) else 0.0 for key, part in value.items()}
    read = read_some(constants, params)
    whole = {name: _STAND_INS.get(name) for name in received} | constants
    is_complete = all(name in whole for name, field in fields.items() if field.is_required)
    if is_complete and None not in whole.values():
        complete: Any = params_from(whole, params)
        if isinstance(complete, WriteParams) and "source" in read:
            check_source(complete)
    _check_model(read)
    source = received.get("source")
    if isinstance(source, str) and not source.startswith("{{"):
        may_change(source)  # Checks its kind.
    return {name: _in_kfps_types(received[name], value) for name, value in read.items() if is_constant(received[name])}


def _in_kfps_types(constant: Any, read: Any) -> Any:
    """Return a constant in KFP's types.

    Mappings are returned unchanged, because adding the defaults of their fields would change the cache key.
    """
    if isinstance(constant, Mapping):
        return constant
    if isinstance(constant, list | tuple) and any(isinstance(item, Mapping) for item in constant):
        return list(constant)
    return as_json(read)


def _check_model(values: Mapping[str, Any]) -> None:
    """Check the model in the inputs of train_model or preflight_training.

    Raises:
        InputError: If the name of a registered model or one of its parameters is unknown, or if the model is a file
            in a bucket.
    """
    training = values.get("training")
    name = getattr(training, "model", values.get("model", ""))
    if _READY_MODEL.fullmatch(name):
        check_model(name, getattr(training, "model_parameters", values.get("model_parameters")))
    elif Location(name).is_remote and not is_reference(name):
        raise InputError(
            f"expected the name of a built-in model or the path of a file in the image, received {name!r}. Copy the "
            "file into the image of the step, for example with COPY in a Dockerfile, and pass its path in the image."
        )
