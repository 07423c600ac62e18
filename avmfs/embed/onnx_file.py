"""The messages of an ONNX file, as far as an encoder's graph needs them.

Owns their fields, by the numbers that onnx.proto3 gives them. The ``onnx`` package, which has them all, is as large as
the runtime's own code: protobuf, which the runtime brings, makes the classes from this table.
"""

from __future__ import annotations

from functools import cache
from types import SimpleNamespace
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

INT64: Final = 7
FLOAT: Final = 1
_TYPES: Final = {np.dtype(np.float32): FLOAT, np.dtype(np.int64): INT64}
_PACKAGE: Final = "avmfs.onnx"  # not "onnx": that package may be in the same process
# Message: "number name type"; * is repeated. Enumerations are numbers here, which are written the same.
_FIELDS: Final = {
    "ModelProto": "1 ir_version int64, 7 graph GraphProto, 8 opset_import* OperatorSetIdProto",
    "OperatorSetIdProto": "1 domain string, 2 version int64",
    "GraphProto": "1 node* NodeProto, 2 name string, 5 initializer* TensorProto, 11 input* ValueInfoProto,"
    " 12 output* ValueInfoProto",
    "NodeProto": "1 input* string, 2 output* string, 3 name string, 4 op_type string, 5 attribute* AttributeProto,"
    " 7 domain string",
    "AttributeProto": "1 name string, 2 f float, 3 i int64, 20 type int32",
    "TensorProto": "1 dims* int64, 2 data_type int32, 8 name string, 9 raw_data bytes",
    "ValueInfoProto": "1 name string, 2 type TypeProto",
    "TypeProto": "1 tensor_type Tensor",
    "Tensor": "1 elem_type int32, 2 shape TensorShapeProto",
    "TensorShapeProto": "1 dim* Dimension",
    "Dimension": "1 dim_value int64, 2 dim_param string",
}


@cache
def messages() -> SimpleNamespace:
    """The classes by their names. Raises ImportError without protobuf."""
    from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

    kinds = descriptor_pb2.FieldDescriptorProto
    file = descriptor_pb2.FileDescriptorProto(name="avmfs/onnx.proto", package=_PACKAGE, syntax="proto3")
    for message, fields in _FIELDS.items():
        made = file.message_type.add(name=message)
        for number, name, kind in (each.split() for each in fields.split(",")):
            label = kinds.LABEL_REPEATED if name.endswith("*") else kinds.LABEL_OPTIONAL
            field = made.field.add(name=name.rstrip("*"), number=int(number), label=label)
            if kind in _FIELDS:
                field.type, field.type_name = kinds.TYPE_MESSAGE, f".{_PACKAGE}.{kind}"
            else:
                field.type = getattr(kinds, f"TYPE_{kind.upper()}")
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    found = {name: pool.FindMessageTypeByName(f"{_PACKAGE}.{name}") for name in _FIELDS}
    return SimpleNamespace(**{name: message_factory.GetMessageClass(each) for name, each in found.items()})


def node(kind: str, inputs: list[str], output: str, domain: str, attributes: dict[str, int | float]) -> Any:
    """A step of a graph, of the name of what it gives."""
    made = messages().NodeProto(op_type=kind, input=inputs, output=[output], name=output, domain=domain)
    for name, value in attributes.items():
        if isinstance(value, float):
            made.attribute.add(name=name, f=value, type=1)
        else:
            made.attribute.add(name=name, i=value, type=2)
    return made


def tensor(name: str, value: NDArray[Any]) -> Any:
    """A constant: float32 or int64."""
    kind = _TYPES[value.dtype]
    return messages().TensorProto(name=name, dims=value.shape, data_type=kind, raw_data=value.tobytes())


def value_info(name: str, kind: int, axes: list[str | int]) -> Any:
    """What goes into a graph or comes out of it: lengths of its axes, or their names."""
    made = messages().ValueInfoProto(name=name)
    made.type.tensor_type.elem_type = kind
    for axis in axes:
        made.type.tensor_type.shape.dim.add(**{"dim_param" if isinstance(axis, str) else "dim_value": axis})
    return made


def model(
    name: str,
    nodes: list[Any],
    inputs: list[Any],
    outputs: list[Any],
    tensors: list[Any],
    *,
    ir_version: int,
    opsets: dict[str, int],
) -> bytes:
    """The bytes of a file; ``opsets``: versions by domain."""
    made = messages().ModelProto(ir_version=ir_version)
    for domain, version in opsets.items():
        made.opset_import.add(domain=domain, version=version)
    made.graph.name = name
    for field, given in (("node", nodes), ("input", inputs), ("output", outputs), ("initializer", tensors)):
        getattr(made.graph, field).extend(given)
    return bytes(made.SerializeToString())
