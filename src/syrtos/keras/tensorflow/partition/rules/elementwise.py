"""Rules of operations that compute each element by itself, with broadcasting."""

from __future__ import annotations

from collections.abc import Sequence

import tensorflow as tf

from syrtos.comm.arrays import ReduceOp
from syrtos.keras.tensorflow.partition.emitter import Emitter
from syrtos.keras.tensorflow.partition.rules.registry import rule, types
from syrtos.keras.tensorflow.partition.values import Partial, RowPlacement, Value

ELEMENTWISE = types(
    "Abs Acos Acosh Add AddN AddV2 Angle Asin Asinh Atan Atan2 Atanh Betainc BesselI0e BesselI1e"
    " BitwiseAnd BitwiseOr BitwiseXor Cast Ceil CheckNumerics ClipByValue Complex ComplexAbs Conj"
    " Cos Cosh Digamma Div DivNoNan Elu EluGrad Equal Erf Erfc Erfinv Exp Expm1"
    " FakeQuantWithMinMaxArgs FakeQuantWithMinMaxArgsGradient Floor"
    " FloorDiv FloorMod Gelu Greater GreaterEqual Identity Igamma Igammac Imag Inv InvGrad Invert"
    " IsFinite IsInf IsNan LeakyRelu LeakyReluGrad LeftShift Less LessEqual Lgamma Log Log1p"
    " LogicalAnd LogicalNot LogicalOr Maximum Minimum Mod Mul MulNoNan Ndtri Neg NextAfter NotEqual"
    " OnesLike PlaceholderWithDefault Polygamma Pow PreventGradient Real RealDiv Reciprocal"
    " ReciprocalGrad Relu Relu6 Relu6Grad ReluGrad RightShift Rint Round Rsqrt RsqrtGrad Select"
    " SelectV2 Selu SeluGrad Sigmoid SigmoidGrad Sign Sin Sinh Snapshot Softplus SoftplusGrad"
    " Softsign SoftsignGrad Sqrt SqrtGrad Square SquaredDifference StopGradient Sub Tan Tanh"
    " TanhGrad TruncateDiv TruncateMod Xdivy Xlog1py Xlogy ZerosLike Zeta AsString StringLower"
    " StringUpper StringStrip StringLength StaticRegexReplace RegexReplace StaticRegexFullMatch"
    " StringToHashBucketFast StringToHashBucketStrong StringToHashBucket StringToNumber"
    " Bucketize Substr"
)

# Linear in one input.
_LINEAR = ("Identity", "Neg", "StopGradient", "PreventGradient", "Snapshot")
SUMS = ("Add", "AddN", "AddV2", "Sub")
_PRODUCTS = ("Mul", "MulNoNan")
_QUOTIENTS = ("RealDiv", "Div", "DivNoNan")


@rule(*ELEMENTWISE, takes_partial=True)
def elementwise(emitter: Emitter, op: tf.Operation, values: list[Value]) -> list[Value] | None:
    """Computes each element of the result from the elements of the inputs at its place."""
    if any(value.is_partial for value in values):
        found = linear(emitter, op, values)
        if found is not None:
            return found
        values = emitter.reduce_partial(values)
    rank = max((v.rank for v in values if v.rank is not None), default=0)
    if any(v.rank is None for v in values):
        return None
    # The first version of `Select` takes a vector for the rows of matrices.
    if op.type == "Select" and len({v.rank for v in values}) > 1:
        return None
    return broadcast(emitter, op, values, rank)


def broadcast(
    emitter: Emitter, op: tf.Operation, values: Sequence[Value], rank: int
) -> list[Value] | None:
    """Emits an operation on values that are broadcast to ``rank`` dimensions."""
    spread = [value for value in values if value.rows]
    if not spread:
        return None
    # The largest of them keeps its placement; others that have other rows are gathered.
    rows = aligned_rows(max(spread, key=lambda v: _weight(v)), rank)
    tensors = []
    for value in values:
        assert value.rank is not None
        local = RowPlacement(rows.dim - (rank - value.rank), rows.each)
        tensors.append(emitter.at_rows(value, local) if local.dim >= 0 else emitter.whole(value))
    return [Value(tensor, rows) for tensor in emitter.emit(op, tensors)]


def aligned_rows(value: Value, rank: int) -> RowPlacement:
    """Returns the placement of a value's rows in a result of ``rank`` dimensions."""
    assert value.rows is not None
    assert value.rank is not None
    return RowPlacement(value.rows.dim + rank - value.rank, value.rows.each)


def _weight(value: Value) -> int:
    """Returns about how many elements a row of a value has."""
    found = 1
    for size in value.tensor.shape.as_list():
        # A dimension of unknown size counts as a large one.
        found *= 64 if size is None else size
    return found


def linear(emitter: Emitter, op: tf.Operation, values: Sequence[Value]) -> list[Value] | None:
    """Emits an operation on partial values whose result is partial; None where it is not."""
    if not is_linear(emitter, op, values):
        return None
    if op.type in SUMS:
        values = [Value(emitter.at(value, Partial()), Partial()) for value in values]
    placement = values[[value.is_partial for value in values].index(True)].placement
    return [Value(t, placement) for t in emitter.emit(op, [v.tensor for v in values])]


def is_linear(emitter: Emitter, op: tf.Operation, values: Sequence[Value]) -> bool:
    """Returns whether the workers' results for partial inputs add up to the result."""
    partial = [v.is_partial for v in values]
    if any(v.is_partial and v.placement != Partial(ReduceOp.SUM) for v in values):
        # A maximum of the workers' maxima stays one where nothing is computed.
        return op.type in ("Identity", "StopGradient")
    if op.type == "Cast":
        return op.inputs[0].dtype.is_floating and op.outputs[0].dtype.is_floating
    if op.type in SUMS:
        return all(partial) or (emitter.defers_sums and not any(v.rows for v in values))
    if op.type in _QUOTIENTS:
        # Of whole numbers `Div` takes the floor.
        return partial[0] and values[1].is_replicated and not op.inputs[0].dtype.is_integer
    if op.type in _PRODUCTS:
        return sum(partial) == 1 and all(v.is_partial or v.is_replicated for v in values)
    return op.type in _LINEAR


# Types of operations whose rule may leave a partial sum partial.
KEEPING_SUMS = frozenset((*_LINEAR, *SUMS, *_PRODUCTS, *_QUOTIENTS, "Cast"))
