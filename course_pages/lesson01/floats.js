// Floating-point formats of any width up to 64 bits, exact: what FloatFormat of course_lib.numerics does, in the browser.
// A format is the data that Python sends:
//   { name, exponent_bits, fraction_bits, bias, specials, overflow, max_pattern, nan_pattern }   (patterns in hex)
// A number is a double. Patterns and significands are BigInt, because 64 bits do not fit in a double.

const scratch = new DataView(new ArrayBuffer(8));

function bitsOfDouble(x) {
  scratch.setFloat64(0, x);
  return scratch.getBigUint64(0);
}

// A double as the text that travels between Python and here, and back.
export function toWire(x) {
  return bitsOfDouble(Number.isNaN(x) ? NaN : x).toString(16).padStart(16, "0");
}

export function fromWire(text) {
  scratch.setBigUint64(0, BigInt(`0x${text}`));
  return scratch.getFloat64(0);
}

// 2^exponent, exact down to the smallest subnormal double (the ** operator promises less).
function powerOfTwo(exponent) {
  const normal = exponent >= -1022;
  scratch.setBigUint64(0, normal ? BigInt(exponent + 1023) << 52n : 1n << BigInt(exponent + 1074));
  return scratch.getFloat64(0);
}

// To the nearest whole number, ties to even; exact, as x and its fraction are.
function roundToEven(x) {
  const down = Math.floor(x);
  const rest = x - down;
  return rest > 0.5 || (rest === 0.5 && down % 2) ? down + 1 : down;
}

export function prepare(format) {
  const width = format.exponent_bits + format.fraction_bits;
  return {
    ...format,
    width,
    signBit: 1n << BigInt(width),
    largest: BigInt(format.max_pattern),
    nan: format.nan_pattern === null ? null : BigInt(format.nan_pattern),
    lowest: 1 - format.bias - format.fraction_bits, // the exponent of the smallest subnormal
  };
}

// What a magnitude too large for the format becomes; infinity counts as one.
function beyond(format) {
  return { inf: format.largest + 1n, saturate: format.largest, nan: format.nan }[format.overflow];
}

// The bit pattern of x after rounding to nearest even; null for a nan where the format has none.
export function encode(format, x) {
  if (Number.isNaN(x)) return format.nan;
  const sign = x < 0 || Object.is(x, -0) ? format.signBit : 0n;
  if (!Number.isFinite(x)) return sign | beyond(format);
  const top = Number(bitsOfDouble(Math.abs(x)) >> 52n) - 1023; // |x| lies in [2^top, 2^(top + 1)), or is a subnormal double
  const spacing = Math.max(format.lowest, top - format.fraction_bits);
  const steps = BigInt(roundToEven(Math.abs(x) / powerOfTwo(spacing)));
  // Steps carry into the exponent field by themselves: the pattern counts the numbers from zero upwards.
  const magnitude = (BigInt(spacing - format.lowest) << BigInt(format.fraction_bits)) + steps;
  return sign | (magnitude > format.largest ? beyond(format) : magnitude);
}

// The value of a bit pattern, exact.
export function decode(format, pattern) {
  const magnitude = pattern & (format.signBit - 1n);
  const sign = pattern & format.signBit ? -1 : 1;
  if (magnitude > format.largest) {
    return format.specials === "ieee" && magnitude === format.largest + 1n ? sign * Infinity : NaN;
  }
  const field = Number(magnitude >> BigInt(format.fraction_bits));
  const fraction = magnitude & ((1n << BigInt(format.fraction_bits)) - 1n);
  const steps = field ? fraction | (1n << BigInt(format.fraction_bits)) : fraction;
  return sign * Number(steps) * powerOfTwo(format.lowest + Math.max(0, field - 1));
}

// The numbers below and above the one that a pattern stands for; nan beyond the last one.
export function neighbours(format, pattern) {
  const value = pattern === null ? NaN : decode(format, pattern);
  if (Number.isNaN(value)) return [NaN, NaN];
  const magnitude = pattern & (format.signBit - 1n);
  const place = pattern & format.signBit ? -magnitude : magnitude; // +0 and -0 are both in place 0
  const last = format.largest + (format.specials === "ieee" ? 1n : 0n);
  return [place - 1n, place + 1n].map((at) => {
    const distance = at < 0n ? -at : at;
    if (distance > last) return NaN;
    return decode(format, at < 0n ? distance | format.signBit : distance);
  });
}

// Special cases in words; "" for an ordinary number.
function inWords(format, value, stored) {
  const size = Math.abs(stored);
  const largest = decode(format, format.largest);
  const smallestNormal = powerOfTwo(1 - format.bias);
  if (Number.isNaN(value)) return format.nan === null ? "has no nan" : "not a number";
  if (Number.isNaN(stored)) return "overflows to nan";
  if (!Number.isFinite(stored)) return Number.isFinite(value) ? "overflows to infinity" : "infinity";
  if (size === largest) return Math.abs(value) > largest ? "held at the largest" : "largest finite";
  if (size === 0) return value !== 0 ? "rounds to zero" : Object.is(stored, -0) ? "negative zero" : "zero";
  if (size < smallestNormal) return size === powerOfTwo(format.lowest) ? "smallest subnormal" : "subnormal";
  return size === smallestNormal ? "smallest normal" : "";
}

// Everything that one row of the explorer shows: the same fields as BitRow in explorer.py. `pattern` is given where the
// reader clicked it together; otherwise it is value, rounded.
export function bitRow(format, value, pattern = encode(format, value)) {
  const stored = pattern === null ? NaN : decode(format, pattern);
  const [below, above] = neighbours(format, pattern);
  const error = stored === value ? 0 : Math.abs(stored - value);
  const relative = error === 0 ? 0 : Number.isFinite(value) ? error / Math.abs(value) : error;
  const bits = pattern === null ? "" : pattern.toString(2).padStart(format.width + 1, "0");
  return { name: format.name, bits, stored, below, above, error, relative, note: inWords(format, value, stored) };
}
